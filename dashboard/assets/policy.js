// Browser side of the policy page: who makes a change is remembered, the address holds the draft, points fill the form.
(function () {
    "use strict";
    const clientside = (window.dash_clientside = window.dash_clientside || {});
    const helios = (clientside.helios = clientside.helios || {});
    const cells = (window.dashAgGridComponentFunctions = window.dashAgGridComponentFunctions || {});
    const KEY = "helios-who";
    const PATH = "/dashboard/policy";
    const FIELDS = ["policy-actor", "policy-rollback-actor", "guard-actor"];

    // No callback listens to the name while somebody types: an answer on its way can undo what is typed meanwhile.
    document.addEventListener("focusout", function (event) {
        if (!FIELDS.includes(event.target.id) || event.target.readOnly) return;
        try {
            window.localStorage.setItem(KEY, event.target.value.trim());
        } catch (_) {
            // A browser that keeps nothing; remembering is a convenience only.
        }
    });

    helios.recallWho = function (_, fixed) {
        if (fixed) return clientside.no_update;
        try {
            return window.localStorage.getItem(KEY) || clientside.no_update;
        } catch (_) {
            return clientside.no_update;
        }
    };

    helios.needsWho = (who, target) => !(who || "").trim() || target === null || target === undefined;

    helios.isNotBudget = (preset) => preset !== "budget";

    helios.sameAs = (value) => value;

    helios.askAgain = (tick, busy) => (busy ? clientside.no_update : tick);

    // The address follows what the page shows, without a new entry in the history and without asking for a new page.
    function put(name, value) {
        if (window.location.pathname.replace(/\/$/, "") !== PATH) return clientside.no_update;
        const query = new URLSearchParams(window.location.search);
        value ? query.set(name, value) : query.delete(name);
        const text = query.toString().replace(/%3A/g, ":").replace(/%2C/g, ",");
        window.history.replaceState(window.history.state, "", PATH + (text ? "?" + text : ""));
        return text;
    }

    helios.policyAddress = (draft) => (draft === null || draft === undefined ? clientside.no_update : put("draft", draft));

    helios.policyPreviewAddress = (id) => put("preview", id);

    // `token_fairness:20,newcomer_memory:decode` into the fields; the server judges them like anything typed.
    function fill(text) {
        clientside.set_props("policy-preset", { value: null });
        for (const part of text.split(",")) {
            const cut = part.indexOf(":");
            clientside.set_props({ type: "coefficient", name: part.slice(0, cut) }, { value: part.slice(cut + 1) });
        }
        const diff = document.getElementById("policy-diff");
        if (diff) diff.scrollIntoView({ block: "center", behavior: "smooth" });
    }

    document.addEventListener("click", function (event) {
        const source = event.target.closest ? event.target.closest("[data-draft]") : null;
        if (source) fill(source.getAttribute("data-draft"));
    });

    helios.putIntoForm = function (clicked) {
        const point = clicked && clicked.points.length ? clicked.points[0] : null;
        const text = point && point.customdata ? point.customdata[3] : null;
        if (!text) return clientside.no_update;
        fill(text);
        return text;
    };

    // A suggestion stands in for nothing or for the one before it, never for what somebody typed meanwhile.
    const suggested = {};
    helios.suggestValues = function (values, typed, id) {
        const before = suggested[id] || "";
        if ((typed || "").trim() && typed !== before) return clientside.no_update;
        suggested[id] = values;
        return values;
    };

    // Opens the evidence of a decided trial below the history; a running one is at the top of the page.
    cells.TrialLink = function (props) {
        if (!props.value) return null;
        const href = PATH + "?trial=" + props.data.version;
        const open = function (event) {
            const trial = document.getElementById("trial-" + props.data.version) || document.getElementById("guard-panel");
            if (event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey || !trial) return;
            event.preventDefault();
            if ("open" in trial) trial.open = true;
            trial.scrollIntoView({ block: "center", behavior: "smooth" });
            put("trial", String(props.data.version));
        };
        return window.React.createElement("a", { href: href, onClick: open }, props.value);
    };
})();
