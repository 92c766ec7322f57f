// Browser side of the Costs page: another run is another address.
(function () {
    "use strict";
    const helios = (window.dash_clientside = window.dash_clientside || {}).helios =
        window.dash_clientside.helios || {};
    const cells = (window.dashAgGridComponentFunctions = window.dashAgGridComponentFunctions || {});

    // `shown`: the run that the page is of; a page that was just made asks for nothing.
    helios.chooseRun = function (run, shown) {
        if (!run || run === shown) return window.dash_clientside.no_update;
        const here = new URL(window.location.href);
        here.searchParams.set("run", run);
        here.searchParams.delete("graph");
        window.history.pushState({}, "", here.pathname + here.search);
        window.dispatchEvent(new CustomEvent("_dashprivate_pushstate"));
        return run;
    };

    cells.CostLink = (props) =>
        window.React.createElement(
            "span",
            { className: "kind-cell" },
            window.React.createElement("span", { className: "dot", style: { background: props.data.colour } }),
            cells.PlanLink(props),
        );
})();
