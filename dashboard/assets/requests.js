// Browser side of the Requests page: a filter becomes part of the address, which is what the page is made from.
(function () {
    "use strict";
    const helios = (window.dash_clientside = window.dash_clientside || {}).helios =
        window.dash_clientside.helios || {};
    const PATH = "/dashboard/requests";

    helios.filterRequests = function (text, finish, model, run, order) {
        const same = window.dash_clientside.no_update;
        const here = new URL(window.location.href);
        if (here.pathname.replace(/\/$/, "") !== PATH) return same;
        const wanted = { q: (text || "").trim(), finish: finish, model: model, run: run, order: order === "newest" ? "" : order };
        let changed = false;
        for (const [name, value] of Object.entries(wanted)) {
            if ((here.searchParams.get(name) || "").trim() === (value || "")) continue;
            changed = true;
            value ? here.searchParams.set(name, value) : here.searchParams.delete(name);
        }
        if (!changed) return same; // a page that was just made says what its address says
        here.searchParams.delete("page");
        window.history.pushState({}, "", here.pathname + here.search);
        window.dispatchEvent(new CustomEvent("_dashprivate_pushstate"));
        keepFocus(document.activeElement && document.activeElement.id);
        return here.search;
    };

    // The page is made anew for its address; the field that was in use is in use again.
    function keepFocus(id) {
        if (!id || !id.startsWith("requests-")) return;
        const before = document.getElementById(id);
        const observer = new MutationObserver(() => {
            const field = document.getElementById(id);
            if (!field || field === before) return;
            observer.disconnect();
            field.focus();
        });
        observer.observe(document.body, { childList: true, subtree: true });
        setTimeout(() => observer.disconnect(), 5000);
    }

    helios.openLifePlan = function (clicked) {
        const id = clicked && clicked.points.length ? clicked.points[0].id : null;
        if (!id) return window.dash_clientside.no_update;
        const cut = id.lastIndexOf("/");
        window.history.pushState({}, "", "/dashboard/plan/" + encodeURIComponent(id.slice(0, cut)) + "/" + id.slice(cut + 1));
        window.dispatchEvent(new CustomEvent("_dashprivate_pushstate"));
        window.scrollTo(0, 0);
        return id;
    };
})();
