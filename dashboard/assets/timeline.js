// Browser side of the timeline: what is in view is the query of the address. See dashboard/pages/timeline/callbacks.py.
(function () {
    "use strict";
    const helios = (window.dash_clientside = window.dash_clientside || {}).helios =
        window.dash_clientside.helios || {};
    const PATH = "/dashboard/timeline";
    const SPAN_FIELDS = ["since", "until", "last"];
    const FIELDS = ["kind", "reason", "outcome", "policy", "run", "request"];
    const LEAST_MS = 0.05, WHEEL_STEP = 1.25, SETTLE_MS = 120;
    const same = () => window.dash_clientside.no_update;
    const set = (id, props) => window.dash_clientside.set_props(id, props);
    // What this browser shows: the query, and the state that came with the last answer.
    let query = null, shown = null, answeredAt = 0, pressed = false, wheel = null;

    const here = () => window.location.pathname.replace(/\/$/, "") === PATH;
    const values = () => new URLSearchParams(query || "");
    const isFixed = () => values().has("since");

    // Another view, in the address too. Without a change nothing is asked.
    function go(params) {
        const text = params.toString();
        const next = text ? "?" + text : "";
        if (next === query || !here()) return;
        query = next;
        window.history.replaceState(window.history.state, "", window.location.pathname + next);
        set("timeline-query", { data: next });
        set("timeline-live", { checked: !params.has("since") });
    }

    // RFC 3339 to the microsecond; a Date holds only milliseconds.
    function instant(ms) {
        const whole = Math.floor(ms);
        const micros = String(Math.round((ms - whole) * 1000)).padStart(3, "0").slice(0, 3);
        return new Date(whole).toISOString().replace("Z", micros + "Z");
    }

    function show(sinceMs, untilMs) {
        const middle = (sinceMs + untilMs) / 2, half = Math.max(untilMs - sinceMs, LEAST_MS) / 2;
        if (!Number.isFinite(middle) || !Number.isFinite(half)) return;
        const params = values();
        params.set("since", instant(middle - half));
        params.set("until", instant(middle + half));
        // Who presses again before the answer is there goes on from where it will be.
        shown = Object.assign({}, shown, { since_ms: middle - half, until_ms: middle + half });
        go(params);
    }

    // The newest plans again, or the moving span that was there before.
    function follow() {
        const params = values();
        params.delete("since");
        params.delete("until");
        go(params);
    }

    function move(how, around, factor) {
        if (!shown || shown.since_ms === undefined) return;
        const width = shown.until_ms - shown.since_ms;
        if (how === "earlier") return show(shown.since_ms - width / 2, shown.until_ms - width / 2);
        if (how === "later") return show(shown.since_ms + width / 2, shown.until_ms + width / 2);
        const at = around === undefined ? (shown.since_ms + shown.until_ms) / 2 : around;
        const scale = how === "in" ? 1 / (factor || 2) : factor || 2;
        show(at - (at - shown.since_ms) * scale, at + (shown.until_ms - at) * scale);
    }

    const asMs = (text) => {
        const [head, tail] = String(text).replace(" ", "T").split(".");
        const day = head.length === 10 ? head + "T00:00" : head;
        return Date.parse(day + "Z") + (tail ? Number("0." + tail) * 1000 : 0);
    };

    helios.noteTimeline = function (newQuery, state, relayout) {
        const asked = window.dash_clientside.callback_context.triggered.map((entry) => entry.prop_id);
        if (query === null || asked.includes("timeline-query.data") || !asked.length) query = newQuery;
        // The answer to an older question says nothing of what is asked now.
        if (asked.includes("timeline-state.data") && state) {
            if (state.query === query) shown = state;
            answeredAt = performance.now();
        }
        if (asked.includes("timeline-graph.relayoutData") && relayout) {
            if ("xaxis.range[0]" in relayout) show(asMs(relayout["xaxis.range[0]"]), asMs(relayout["xaxis.range[1]"]));
            else if (relayout["xaxis.autorange"]) isFixed() ? follow() : set("timeline-ask", { data: Date.now() });
        }
        return same();
    };

    helios.chooseTimeline = function (by, ...chosen) {
        const params = values();
        by && by !== "kind" ? params.set("by", by) : params.delete("by");
        FIELDS.forEach((name, index) => {
            const value = (chosen[index] || "").trim();
            value ? params.set(name, value) : params.delete(name);
        });
        go(params);
        return same();
    };

    helios.pauseTimeline = function (live, state, now) {
        if (query === null) query = now;
        if (state && state.query === query) shown = state;
        if (live && isFixed()) follow();
        if (!live && !isFixed() && shown && shown.since_ms !== undefined) show(shown.since_ms, shown.until_ms);
        return same();
    };

    helios.askTimeline = function (tick, busy) {
        const due = !shown || performance.now() - answeredAt >= shown.refresh_ms - 50;
        return busy || pressed || document.hidden || isFixed() || !due ? same() : tick;
    };

    function openPath(path) {
        window.history.pushState({}, "", path);
        window.dispatchEvent(new CustomEvent("_dashprivate_pushstate"));
        window.scrollTo(0, 0);
    }

    helios.openMark = function (clicked) {
        const id = clicked && clicked.points.length ? clicked.points[0].id : null;
        if (!id) return same();
        if (id.startsWith("zoom:")) {
            const [since, until] = id.slice(5).split("/").map(Number);
            show(since, until);
        } else if (id.startsWith("request:")) {
            const [run, request] = id.slice(8).split("\n").slice(0, 2).map(encodeURIComponent);
            openPath("/dashboard/requests/" + run + "/" + request);
        } else {
            const cut = id.lastIndexOf("/");
            openPath("/dashboard/plan/" + encodeURIComponent(id.slice(0, cut)) + "/" + id.slice(cut + 1));
        }
        return same();
    };

    // The address in the command of the empty page is the one that the browser uses.
    helios.nameOrigin = (_, command) =>
        command ? command.replace(/https?:\/\/[^/\s]+/, window.location.origin) : window.dash_clientside.no_update;

    // An address that somebody else changed, such as a link to this page: the view and its controls follow it.
    function adopt() {
        if (!here() || query === null || window.location.search === query) return;
        query = window.location.search;
        const params = values();
        set("timeline-query", { data: query });
        set("timeline-live", { checked: !params.has("since") });
        set("timeline-by", { value: params.get("by") === "reason" ? "reason" : "kind" });
        FIELDS.forEach((name) => set("timeline-filter-" + name, { value: params.get(name) || (name === "request" ? "" : null) }));
    }
    window.addEventListener("_dashprivate_pushstate", () => (here() ? setTimeout(adopt, 0) : (query = null)));
    window.addEventListener("popstate", () => (here() ? setTimeout(adopt, 0) : (query = null)));

    document.addEventListener("click", function (event) {
        const target = event.target.closest ? event.target.closest("[data-move], .timeline-span") : null;
        if (!target || event.button !== 0 || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
        if (target.dataset.move) return move(target.dataset.move);
        event.preventDefault();
        const params = values();
        SPAN_FIELDS.forEach((name) => params.delete(name));
        if (target.dataset.last) params.set("last", target.dataset.last);
        go(params);
    });

    const KEYS = { ArrowLeft: "earlier", ArrowRight: "later", "+": "in", "=": "in", "-": "out", "_": "out" };
    document.addEventListener("keydown", function (event) {
        if (event.target.id !== "timeline-frame" || event.ctrlKey || event.metaKey || event.altKey) return;
        if (event.key === "0") follow();
        else if (KEYS[event.key]) move(KEYS[event.key]);
        else return;
        event.preventDefault();
    });

    const plot = (target) => (target.closest ? target.closest("#timeline-graph .js-plotly-plot") : null);
    document.addEventListener("pointerdown", (event) => (pressed = plot(event.target) !== null), true);
    window.addEventListener("pointerup", () => (pressed = false), true);

    // Without Ctrl the wheel scrolls the page, as everywhere.
    document.addEventListener(
        "wheel",
        function (event) {
            const graph = plot(event.target);
            if (!graph || !event.ctrlKey || !shown) return;
            event.preventDefault();
            const axis = graph._fullLayout.xaxis, left = graph.getBoundingClientRect().left + axis._offset;
            const around = asMs(axis.p2d(event.clientX - left));
            clearTimeout(wheel && wheel.timer);
            const steps = (wheel ? wheel.steps : 0) + (event.deltaY > 0 ? 1 : -1);
            const settled = () => {
                wheel = null;
                if (steps) move(steps > 0 ? "out" : "in", around, Math.pow(WHEEL_STEP, Math.abs(steps)));
            };
            wheel = { steps: steps, timer: setTimeout(settled, SETTLE_MS) };
        },
        { passive: false },
    );
})();
