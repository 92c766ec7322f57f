// Browser side of the policy page: who makes a change is remembered in this browser.
(function () {
    "use strict";
    const helios = (window.dash_clientside = window.dash_clientside || {}).helios =
        window.dash_clientside.helios || {};
    const KEY = "helios-who";

    const FIELDS = ["policy-actor", "policy-rollback-actor"];

    // No callback listens to the name while somebody types: an answer on its way can undo what is typed meanwhile.
    document.addEventListener("focusout", function (event) {
        if (!FIELDS.includes(event.target.id)) return;
        try {
            window.localStorage.setItem(KEY, event.target.value.trim());
        } catch (_) {
            // A browser that keeps nothing; remembering is a convenience only.
        }
    });

    helios.recallWho = function () {
        try {
            return window.localStorage.getItem(KEY) || window.dash_clientside.no_update;
        } catch (_) {
            return window.dash_clientside.no_update;
        }
    };

    helios.needsWho = (who, target) => !(who || "").trim() || target === null || target === undefined;
})();
