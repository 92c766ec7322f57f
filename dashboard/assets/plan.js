// Browser side of the plan page: [ and ] walk to the plan before and behind.
(function () {
    "use strict";
    const STEPS = { "[": "previous", "]": "next" };

    document.addEventListener("keydown", function (event) {
        const step = STEPS[event.key];
        if (!step || event.ctrlKey || event.metaKey || event.altKey) return;
        if (event.target.closest && event.target.closest("input, textarea, select, [contenteditable]")) return;
        const link = document.querySelector(".steps a." + step);
        if (!link) return;
        event.preventDefault();
        link.click();
    });
})();
