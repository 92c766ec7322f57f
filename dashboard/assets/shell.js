// Browser side of the frame: navigation marks, page titles, and one colour scheme for Mantine, AG Grid and Plotly.
(function () {
    "use strict";
    const helios = (window.dash_clientside = window.dash_clientside || {}).helios =
        window.dash_clientside.helios || {};

    helios.markNavigation = function (pathname) {
        const path = (pathname || "").replace(/\/$/, "");
        const timeline = path === "/dashboard", policy = path === "/dashboard/policy";
        const plan = path.match(/^\/dashboard\/plan\/.*\/(\d+)$/);
        document.title = (timeline ? "Timeline" : policy ? "Policy" : plan ? "Plan " + plan[1] : "Dashboard") + " · Helios";
        const mark = (id, here) => {
            const link = document.getElementById(id);
            if (link) here ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current");
        };
        mark("nav-timeline", timeline);
        mark("nav-policy", policy);
        return ["nav-link" + (timeline ? " here" : ""), "nav-link" + (policy ? " here" : "")];
    };

    // Mantine writes the scheme to <html>; AG Grid reads its own attribute.
    const root = document.documentElement;
    const follow = () => {
        const scheme = root.getAttribute("data-mantine-color-scheme");
        if (scheme) root.setAttribute("data-ag-theme-mode", scheme);
    };
    new MutationObserver(follow).observe(root, { attributes: true, attributeFilter: ["data-mantine-color-scheme"] });
    follow();
})();
