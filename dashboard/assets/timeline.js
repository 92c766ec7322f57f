// Browser side of the timeline: merges figures and rows of newer plans by id. See dashboard/pages/timeline/callbacks.py.
(function () {
    "use strict";
    const helios = (window.dash_clientside = window.dash_clientside || {}).helios =
        window.dash_clientside.helios || {};
    const ROW_HEIGHT_PX = 64; // figures/timeline.py

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

    function mergeTraces(older, newer, limit) {
        const fresh = new Set(newer.flatMap((trace) => trace.ids));
        const byKind = new Map(older.map((trace) => [trace.uid, pick(trace, trace.ids.map((id) => !fresh.has(id)))]));
        for (const trace of newer) {
            const before = byKind.get(trace.uid);
            byKind.set(trace.uid, before ? zipPointArrays(before, trace, (a, b) => a.concat(b)) : trace);
        }
        const traces = [...byKind.values()];
        const starts = traces.flatMap((trace) => trace.base).sort((a, b) => b - a);
        if (starts.length <= limit) return traces;
        const oldest = starts[limit - 1];
        return traces.map((trace) => pick(trace, trace.base.map((start) => start >= oldest)));
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

    function mergeFigures(older, newer, limit) {
        const data = mergeTraces(older.data, newer.data, limit);
        const shown = data.filter((trace) => trace.ids.length);
        const layout = Object.assign({}, newer.layout);
        layout.xaxis = Object.assign({}, newer.layout.xaxis);
        const rows = Math.max(1, shown.length), rowsBefore = Math.max(1, newer.data.length);
        layout.yaxis = Object.assign({}, newer.layout.yaxis, {
            categoryarray: orderOf(older, newer).filter((name) => shown.some((trace) => trace.name === name)),
        });
        layout.height = newer.layout.height + ROW_HEIGHT_PX * (rows - rowsBefore);
        if (layout.meta && shown.length) {
            const first = shown.reduce((least, trace) => Math.min(least, ...trace.base), Infinity);
            const start = Math.max(layout.meta.start_ms, first), end = layout.meta.end_ms;
            const pad = Math.max(1, (end - start) * 0.01);
            layout.xaxis.range = [start - pad, end + pad];
        }
        return { data: shown, layout: layout };
    }

    function mergeRows(older, newer, limit) {
        const fresh = new Set(newer.map((row) => row.id));
        const rows = newer.concat((older || []).filter((row) => !fresh.has(row.id)));
        rows.sort((a, b) => b.committed_ms - a.committed_ms);
        return rows.slice(0, limit);
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

    function zoomed(figure, zoom) {
        if (!zoom) return figure;
        const layout = Object.assign({}, figure.layout);
        layout.xaxis = Object.assign({}, layout.xaxis, { range: zoom });
        return { data: figure.data, layout: layout };
    }

    helios.mergeTimeline = function (delta, figure, rows, zoom) {
        const same = window.dash_clientside.no_update;
        if (!delta) return [same, same, same, same, same];
        if (delta.empty) return [same, [], null, true, false];
        if (delta.replace || !figure) return [zoomed(delta.figure, zoom), delta.rows, delta.cursor, false, true];
        return [
            zoomed(mergeFigures(figure, delta.figure, delta.limit), zoom),
            mergeRows(rows, delta.rows, delta.limit),
            delta.cursor,
            false,
            true,
        ];
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
