"""JavaScript that looks at a whole page: contrast, names of fields and charts, what the keyboard reaches."""

from __future__ import annotations

CONTRAST = """() => {
    const channel = (c) => { c /= 255; return c <= 0.03928 ? c / 12.92 : Math.pow((c + 0.055) / 1.055, 2.4); };
    const light = (c) => 0.2126 * channel(c[0]) + 0.7152 * channel(c[1]) + 0.0722 * channel(c[2]);
    const parse = (text) => (text.match(/[0-9.]+/g) || []).map(Number);
    const behind = (node) => {
        for (let at = node; at; at = at.parentElement) {
            const c = parse(getComputedStyle(at).backgroundColor);
            if (c.length >= 3 && (c.length < 4 || c[3] === 1)) return c;
        }
        return [255, 255, 255];
    };
    const poor = [];
    for (const node of document.querySelectorAll("main *, header *")) {
        const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
        if (!own || !node.getClientRects().length) continue;
        if (node.closest("svg, [data-disabled], :disabled, .disabled, .skip-link")) continue;
        const [a, b] = [light(parse(getComputedStyle(node).color)), light(behind(node))];
        const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (ratio < 4.5) poor.push(node.textContent.slice(0, 40) + " " + ratio.toFixed(2));
    }
    return poor;
}"""
"""Text whose contrast with what is behind it is below 4.5."""

NAMELESS = """() => {
    const named = (node) =>
        [...(node.labels || [])].some((label) => label.textContent.trim()) ||
        (node.getAttribute("aria-label") || node.title || "").trim() ||
        (node.getAttribute("aria-labelledby") || "").split(" ").some((id) => {
            const other = id && document.getElementById(id);
            return other && other.textContent.trim();
        });
    const fields = [...document.querySelectorAll("main input, main select, main textarea")]
        .filter((node) => node.type !== "hidden" && node.getClientRects().length && !named(node))
        .map((node) => "field " + (node.id || node.outerHTML.slice(0, 120)));
    const clickable = [...document.querySelectorAll("main button, main a[href], header button, header a[href]")]
        .filter((node) => node.getClientRects().length && !node.closest(".js-plotly-plot"))
        .filter((node) => !node.textContent.trim() && !named(node))
        .map((node) => "button or link " + node.outerHTML.slice(0, 120));
    const charts = [...document.querySelectorAll(".js-plotly-plot")]
        .filter((node) => node.getClientRects().length && !node.closest("[aria-label], [aria-labelledby]"))
        .map((node) => "chart " + (node.parentElement.id || node.id));
    return [...fields, ...clickable, ...charts];
}"""
"""Fields, buttons, links and charts without a name that is read aloud."""

FOCUS = """() => {
    const node = document.activeElement;
    if (!node || node === document.body) return null;
    const style = getComputedStyle(node);
    const outlined = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0;
    const field = ["INPUT", "SELECT", "TEXTAREA"].includes(node.tagName);
    return {
        where: node.closest("main") ? "main" : node.closest("nav") ? "nav" : "frame",
        name: (node.textContent || node.id || node.tagName).trim().slice(0, 60),
        // A field shows its focus by its border or the box around it.
        visible: outlined || style.boxShadow !== "none" || field || Boolean(node.closest(".ag-root-wrapper")),
    };
}"""
"""Where the keyboard is, and whether that can be seen."""

SIDEWAYS = "document.documentElement.scrollWidth - window.innerWidth"
