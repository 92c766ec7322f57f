// Formatters, cells and theme of the tables; the formatters say the same as dashboard/formatting.py.
(function () {
    "use strict";
    const functions = (window.dashAgGridFunctions = window.dashAgGridFunctions || {});
    const cells = (window.dashAgGridComponentFunctions = window.dashAgGridComponentFunctions || {});
    const NOTHING = "–";
    const missing = (value) => value === null || value === undefined;
    const fixed = (value, digits) =>
        value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });

    functions.count = (value) => (missing(value) ? NOTHING : fixed(value, 0));

    functions.milliseconds = function (value) {
        if (missing(value)) return NOTHING;
        const size = Math.abs(value);
        if (size >= 10000) return fixed(value / 1000, 1) + " s";
        if (size >= 100) return fixed(value, 0) + " ms";
        if (size >= 10) return fixed(value, 1) + " ms";
        if (value === 0) return "0 ms";
        if (size >= 0.1) return fixed(value, 2) + " ms";
        return size >= 0.01 ? fixed(value * 1000, 0) + " µs" : Number((value * 1000).toPrecision(2)) + " µs";
    };

    functions.quantity = function (value) {
        if (missing(value)) return NOTHING;
        const size = Math.abs(value);
        if (value === 0 || (size >= 100 && size < 1e9)) return fixed(value, 0);
        if (size >= 1e9 || size < 1e-3) return value.toPrecision(3);
        return fixed(value, size >= 10 ? 1 : size >= 1 ? 2 : size >= 0.1 ? 3 : 4);
    };

    functions.percent = function (value) {
        if (missing(value)) return NOTHING;
        const percent = value * 100;
        return Math.abs(percent) >= 10 || value === 0 ? fixed(percent, 0) + " %" : Number(percent.toPrecision(2)) + " %";
    };

    // The lead over the runner-up: in percent where both scores are above zero, otherwise as a difference in value.
    functions.margin = function (value, row) {
        if (missing(value)) return NOTHING;
        return row.value_rate > 0 && value <= 1 ? functions.percent(value) : "+" + functions.quantity(value * Math.abs(row.value_rate));
    };

    functions.heliosTheme = (base) =>
        base.withParams({
            fontFamily: "inherit",
            fontSize: 13,
            backgroundColor: "var(--surface)",
            foregroundColor: "var(--ink)",
            headerBackgroundColor: "var(--surface-raised)",
            headerTextColor: "var(--ink-muted)",
            borderColor: "var(--rule)",
            rowHoverColor: "var(--hover)",
            accentColor: "var(--accent)",
            wrapperBorderRadius: 6,
            cellHorizontalPadding: 10,
            headerFontWeight: 600,
        });

    // Text goes into React children, so a name with markup in it stays text.
    const element = (type, attributes, ...children) => window.React.createElement(type, attributes, ...children);

    function follow(event, href) {
        if (event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
        event.preventDefault();
        window.history.pushState({}, "", href);
        window.dispatchEvent(new CustomEvent("_dashprivate_pushstate"));
        window.scrollTo(0, 0);
    }

    cells.PlanLink = (props) =>
        element("a", { href: props.data.href, onClick: (event) => follow(event, props.data.href) }, props.value);

    cells.RequestLink = cells.PlanLink;

    cells.KindCell = (props) =>
        element(
            "span",
            { className: "kind-cell" },
            element("span", { className: "dot", style: { background: props.data.colour } }),
            props.value,
        );

    cells.RollbackButton = (props) =>
        props.value === "Go back to this"
            ? element(
                  "button",
                  {
                      className: "cell-button",
                      type: "button",
                      "aria-label": "Go back to version " + props.data.version,
                      onClick: () =>
                          window.dash_clientside.set_props("policy-rollback-click", {
                              data: { version: props.data.version, at: Date.now() },
                          }),
                  },
                  props.value,
              )
            : element("span", { className: "muted" }, props.value);
})();
