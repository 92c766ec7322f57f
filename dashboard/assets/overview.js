// Browser side of the overview: when to ask, and a zoom that becomes the address. See dashboard/pages/overview.
(function () {
    "use strict";
    const helios = (window.dash_clientside = window.dash_clientside || {}).helios =
        window.dash_clientside.helios || {};

    // A tab that nobody sees asks nothing; the next question waits for the last answer.
    helios.askWhileSeen = (tick, busy) => (busy || document.hidden ? window.dash_clientside.no_update : tick);

    // What the keyboard is on may be drawn anew under it: the same link in its place gets the focus.
    const AREAS = "#overview-verdict, #overview-tiles, #overview-details", STOPS = "a[href], button, summary";
    let held = null;
    const stopsOf = (area) => Array.from(area ? area.querySelectorAll(STOPS) : []);
    document.addEventListener("focusin", function (event) {
        const stop = event.target, area = stop.closest(AREAS);
        held = area && { stop: stop, area: area.id, at: stopsOf(area).indexOf(stop), href: stop.getAttribute("href") };
    });
    document.addEventListener("focusout", function (event) {
        // A stop that was taken out of the page did not lose the focus to anything that a person chose.
        setTimeout(() => held && held.stop === event.target && event.target.isConnected && (held = null), 0);
    });
    new MutationObserver(function () {
        if (!held || held.stop.isConnected) return;
        const stops = stopsOf(document.getElementById(held.area)), there = stops[held.at];
        const same = (stop) => stop && stop.getAttribute("href") === held.href;
        const next = same(there) ? there : stops.find(same) || there;
        held = null;
        if (next && document.activeElement === document.body) next.focus({ preventScroll: true });
    }).observe(document.documentElement, { childList: true, subtree: true });

    // Dragging across a chart makes what was dragged over the span of the page, so that it can be sent and gone back from.
    helios.zoomSpan = function () {
        const same = window.dash_clientside.no_update;
        const asked = window.dash_clientside.callback_context.triggered[0];
        const zoom = asked && asked.value;
        if (!zoom || !("xaxis.range[0]" in zoom)) return same;
        // Plotly writes 2026-11-30 12:00:00.1234 without a zone; the axis is UTC.
        const utc = (text) => new Date(String(text).replace(" ", "T").slice(0, 23).padEnd(10) + "Z");
        const [since, until] = [utc(zoom["xaxis.range[0]"]), utc(zoom["xaxis.range[1]"])];
        if (isNaN(since) || isNaN(until) || until - since < 1000) return same;
        const query = new URLSearchParams(window.location.search);
        query.delete("last");
        query.set("since", since.toISOString());
        query.set("until", until.toISOString());
        window.history.pushState({}, "", window.location.pathname + "?" + query);
        window.dispatchEvent(new CustomEvent("_dashprivate_pushstate"));
        return zoom["xaxis.range[0]"];
    };
})();
