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
            // On a phone the links are a row that scrolls sideways; the page must not jump with it.
            if (here) link.parentElement.scrollLeft = link.offsetLeft - (link.parentElement.clientWidth - link.offsetWidth) / 2;
        });
        document.title = title + " · Helios";
        return path;
    };

    // The span picker's links (dashboard/span_picker.py): another span is another address, and what else stands in the
    // address now stays, whoever wrote it there. Clicks that mean "in another tab" are the browser's.
    const SPAN_FIELDS = ["last", "since", "until"];
    document.addEventListener("click", (event) => {
        const link = event.target.closest && event.target.closest(".span-picker a");
        if (!link || event.button !== 0 || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
        event.preventDefault();
        const query = new URLSearchParams(window.location.search);
        [...SPAN_FIELDS, ...(link.dataset.drop || "").split(" ")].forEach((name) => name && query.delete(name));
        SPAN_FIELDS.forEach((name) => link.dataset[name] && query.set(name, link.dataset[name]));
        window.history.pushState({}, "", window.location.pathname + "?" + query);
        window.dispatchEvent(new CustomEvent("_dashprivate_pushstate"));
    });

    // Mantine writes the scheme to <html>; AG Grid reads its own attribute.
    const root = document.documentElement;
    const follow = () => {
        const scheme = root.getAttribute("data-mantine-color-scheme");
        if (scheme) root.setAttribute("data-ag-theme-mode", scheme);
    };
    new MutationObserver(follow).observe(root, { attributes: true, attributeFilter: ["data-mantine-color-scheme"] });
    follow();
})();
