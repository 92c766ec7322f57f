// Browser side of the timeline: merges figures and rows of newer plans by id. See dashboard/pages/timeline/callbacks.py.
(function () {
    "use strict";
    const helios = (window.dash_clientside = window.dash_clientside || {}).helios =
        window.dash_clientside.helios || {};
    const ROW_HEIGHT_PX = 64, BASE_HEIGHT_PX = 96; // figures/timeline.py
    const PAUSE_MS = 5000;
    const MOST_LABELS = 12;

    // Applies `change` to every per-point array (one entry per id) of a trace, nested ones included.
    function mapPointArrays(value, length, change) {
        if (Array.isArray(value)) return value.length === length ? change(value) : value;
        if (value === null || typeof value !== "object") return value;
        const copy = {};
        for (const key of Object.keys(value)) copy[key] = mapPointArrays(value[key], length, change);
        return copy;
    }

    function zipPointArrays(older, newer, join) {
        if (Array.isArray(newer)) return join(older, newer);
        if (newer === null || typeof newer !== "object") return newer;
        const merged = {};
        for (const key of Object.keys(newer)) merged[key] = zipPointArrays(older[key], newer[key], join);
        return merged;
    }

    function pick(trace, keep) {
        const length = trace.ids.length;
        return mapPointArrays(trace, length, (array) => array.filter((_, index) => keep[index]));
    }

    function mergeTraces(older, newer) {
        const fresh = new Set(newer.flatMap((trace) => trace.ids));
        const byKind = new Map(older.map((trace) => [trace.uid, pick(trace, trace.ids.map((id) => !fresh.has(id)))]));
        for (const trace of newer) {
            const before = byKind.get(trace.uid);
            byKind.set(trace.uid, before ? zipPointArrays(before, trace, (a, b) => a.concat(b)) : trace);
        }
        return [...byKind.values()];
    }

    // Both figures list their kinds in one fixed order; put together, each kind keeps its place among the others.
    function orderOf(older, newer) {
        const order = [...older.layout.yaxis.categoryarray];
        newer.layout.yaxis.categoryarray.forEach((name, index, names) => {
            if (order.includes(name)) return;
            const before = names.slice(0, index).reverse().find((other) => order.includes(other));
            order.splice(before === undefined ? 0 : order.indexOf(before) + 1, 0, name);
        });
        return order;
    }

    function mergeFigures(older, newer) {
        const layout = Object.assign({}, newer.layout);
        layout.yaxis = Object.assign({}, newer.layout.yaxis, { categoryarray: orderOf(older, newer) });
        return { data: mergeTraces(older.data, newer.data), layout: layout };
    }

    function mergeRows(older, newer) {
        const fresh = new Set(newer.map((row) => row.id));
        const rows = newer.concat((older || []).filter((row) => !fresh.has(row.id)));
        return rows.sort((a, b) => b.committed_ms - a.committed_ms);
    }

    // [start, end] in ms since 1970 of all bars, or of those since the last pause.
    function extent(traces, sinceLastPause) {
        const spans = traces.flatMap((trace) => trace.base.map((base, index) => [base, base + trace.x[index]]));
        if (!spans.length) return null;
        spans.sort((a, b) => a[0] - b[0]);
        let [start, end] = spans[0];
        for (const [from, to] of spans) {
            if (sinceLastPause && from - end > PAUSE_MS) start = from;
            end = Math.max(end, to);
        }
        return [start, end];
    }

    // A thin line at the first plan under another policy version than the plan before it. Rows are newest first.
    function policyMarks(rows) {
        const changes = rows.filter((row, i) => i + 1 < rows.length && rows[i + 1].policy_version !== row.policy_version);
        const shapes = changes.map((row) => ({
            type: "line", x0: row.committed_ms, x1: row.committed_ms, y0: 0, y1: 1, yref: "paper",
            line: { color: "#8089e0", width: 1.2, dash: "dot" },
        }));
        const annotations = changes.slice(0, MOST_LABELS).map((row) => ({
            x: row.committed_ms, y: 1, yref: "paper", yanchor: "bottom", xanchor: "left", showarrow: false,
            text: "policy " + row.policy_version, font: { size: 11 },
        }));
        return { shapes: shapes, annotations: annotations };
    }

    const clock = (ms) => new Date(ms).toISOString().slice(11, 19);
    const day = (ms) => new Date(ms).toISOString().slice(0, 10);
    const counted = (number) => number.toLocaleString("en-US") + (number === 1 ? " plan" : " plans");

    // What chart and table hold, in words.
    function caption(rows, meta, range, sinceLastPause, inChart) {
        const span = meta.span_ms ? "the last " + meta.choice : null;
        if (!rows.length) return "No plan was chosen in " + span + ".";
        const first = rows[rows.length - 1].committed_ms, last = rows[0].committed_ms;
        const from = day(first) === day(last) ? clock(first) : day(first) + " " + clock(first);
        let text = counted(rows.length) + ", committed from " + from + " to " + clock(last) + " UTC.";
        if (span && meta.capped)
            text = "Only the newest " + counted(rows.length) + " of " + span + " are shown, from " + from + "; there were more.";
        if (sinceLastPause && inChart < rows.length)
            text += " The chart begins at " + clock(range[0]) + ", after the last pause of over " + PAUSE_MS / 1000 +
                " s, and so leaves out " + counted(rows.length - inChart) + " of the table.";
        return text;
    }

    // Chart and table hold the same plans; the axis shows all of them, unless the operator chose otherwise.
    function finish(figure, allRows, meta, view, zoom) {
        const since = meta.span_ms ? meta.now_ms - meta.span_ms : -Infinity;
        const inTime = allRows.filter((row) => row.committed_ms >= since);
        const rows = inTime.slice(0, meta.limit);
        const kept = new Set(rows.map((row) => row.id));
        const data = figure.data
            .map((trace) => pick(trace, trace.ids.map((id) => kept.has(id))))
            .filter((trace) => trace.ids.length);
        const capped = (meta.capped && rows.length === meta.limit) || inTime.length > rows.length;
        const sinceLastPause = view === "burst";
        let range = extent(data, sinceLastPause);
        const inChart = range === null ? 0 : data.flatMap((trace) => trace.base).filter((base) => base >= range[0]).length;
        if (meta.span_ms && !sinceLastPause && !capped) range = [since, range ? Math.max(range[1], meta.now_ms) : meta.now_ms];
        const now = Object.assign({}, meta, { capped: capped });
        const layout = Object.assign({}, figure.layout, policyMarks(rows), {
            height: BASE_HEIGHT_PX + ROW_HEIGHT_PX * Math.max(1, data.length),
            uirevision: [meta.choice, view].join(),
            meta: now,
        });
        layout.xaxis = Object.assign({}, figure.layout.xaxis, { visible: range !== null });
        if (range) {
            const pad = Math.max(1, (range[1] - range[0]) * 0.01);
            layout.xaxis.range = zoom || [range[0] - pad, range[1] + pad];
        }
        layout.yaxis = Object.assign({}, figure.layout.yaxis, {
            categoryarray: figure.layout.yaxis.categoryarray.filter((name) => data.some((trace) => trace.name === name)),
        });
        return { figure: { data: data, layout: layout }, rows: rows, caption: caption(rows, now, range, sinceLastPause, inChart) };
    }

    // The address in the command of the empty page is the one that the browser uses.
    helios.nameOrigin = (_, command) =>
        command ? command.replace(/https?:\/\/[^/\s]+/, window.location.origin) : window.dash_clientside.no_update;

    // The part of the time axis that was zoomed into; null follows the newest plans.
    helios.noteZoom = function (relayout) {
        if (relayout && "xaxis.range[0]" in relayout) return [relayout["xaxis.range[0]"], relayout["xaxis.range[1]"]];
        if (relayout && "xaxis.autorange" in relayout) return null;
        return window.dash_clientside.no_update;
    };

    helios.mergeTimeline = function (delta, view, figure, rows, zoom) {
        const same = window.dash_clientside.no_update;
        if (!delta) return [same, same, same, same, same, same];
        if (delta.empty) return [same, [], null, true, false, ""];
        const asked = window.dash_clientside.callback_context.triggered.map((entry) => entry.prop_id);
        const known = figure && figure.layout.meta ? figure.layout.meta : null;
        let done;
        if (known && asked.length && !asked.includes("timeline-delta.data")) {
            window.dash_clientside.set_props("timeline-zoom", { data: null });
            done = finish(figure, rows, known, view, null);
            return [done.figure, done.rows, same, same, same, done.caption];
        }
        const meta = { choice: delta.choice, limit: delta.limit, span_ms: delta.span_ms, now_ms: delta.now_ms };
        if (delta.replace || !known) {
            const other = known && known.choice !== delta.choice;
            if (other && zoom) window.dash_clientside.set_props("timeline-zoom", { data: null });
            meta.capped = delta.capped;
            done = finish(delta.figure, delta.rows, meta, view, other ? null : zoom);
        } else {
            meta.capped = known.capped;
            done = finish(mergeFigures(figure, delta.figure), mergeRows(rows, delta.rows), meta, view, zoom);
        }
        return [done.figure, done.rows, delta.cursor, false, true, done.caption];
    };

    helios.ask = (tick, busy, stripBusy) => (busy || stripBusy ? window.dash_clientside.no_update : tick);

    helios.pause = (live) => !live;

    helios.openPlan = function (clicked) {
        const id = clicked && clicked.points.length ? clicked.points[0].id : null;
        if (!id) return window.dash_clientside.no_update;
        const cut = id.lastIndexOf("/");
        return "/dashboard/plan/" + encodeURIComponent(id.slice(0, cut)) + "/" + id.slice(cut + 1);
    };
})();
