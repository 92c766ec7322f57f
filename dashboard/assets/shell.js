// Browser side of the frame: navigation marks, page titles, and one colour scheme for Mantine, AG Grid and Plotly.
(function () {
    "use strict";
    const helios = (window.dash_clientside = window.dash_clientside || {}).helios =
        window.dash_clientside.helios || {};

    // The link of the page that is shown is marked, and names the page in the browser's tab.
    helios.markNavigation = function (pathname) {
        const path = (pathname || "").replace(/\/$/, "");
        const plan = path.match(/^\/dashboard\/plan\/.*\/(\d+)$/);
        const request = path.match(/^\/dashboard\/requests\/[^/]+\/([^/]+)$/);
        let title = plan ? "Plan " + plan[1] : request ? "Request " + decodeURIComponent(request[1]) : "Dashboard";
        document.querySelectorAll(".nav-link").forEach((link) => {
            const here = new URL(link.href).pathname.replace(/\/$/, "") === path;
            if (here) title = link.textContent;
            link.classList.toggle("here", here);
            here ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current");
        });
        document.title = title + " · Helios";
        return path;
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
