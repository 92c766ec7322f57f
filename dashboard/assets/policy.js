// Browser side of the policy page: who makes a change is remembered in this browser.
(function () {
    "use strict";
    const helios = (window.dash_clientside = window.dash_clientside || {}).helios =
        window.dash_clientside.helios || {};
    const KEY = "helios-who";

    function stored() {
        try {
            return window.localStorage.getItem(KEY) || "";
        } catch (_) {
            return ""; // a browser that keeps nothing
        }
    }

    // The form and the dialog name the same person; on opening the page it is whoever it was last time.
    helios.rememberWho = function (inForm, inDialog) {
        const same = window.dash_clientside.no_update;
        const asked = window.dash_clientside.callback_context.triggered.map((entry) => entry.prop_id);
        if (!asked.length && !inForm && !inDialog && stored()) return [stored(), stored()];
        const who = asked.includes("policy-rollback-actor.value") ? inDialog : inForm;
        try {
            if (asked.length) window.localStorage.setItem(KEY, (who || "").trim());
        } catch (_) {
            return same; // remembering is a convenience only
        }
        return [who === inForm ? same : who, who === inDialog ? same : who];
    };

    helios.needsWho = (who, target) => !(who || "").trim() || target === null || target === undefined;
})();
