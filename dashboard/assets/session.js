// The server's answer to a browser that is signed out, or whose role may not do what was asked, is told in the page.
(function () {
    "use strict";
    const plain = window.fetch;
    let notice = null;

    function say(words, link) {
        if (notice) notice.remove();
        notice = document.createElement("div");
        notice.className = "session-notice";
        notice.setAttribute("role", "alert");
        const text = document.createElement("span");
        text.textContent = words;
        notice.append(text);
        if (link) {
            const way = document.createElement("a");
            way.href = link;
            way.textContent = "Sign in";
            notice.append(way);
        }
        const close = document.createElement("button");
        close.type = "button";
        close.textContent = "Close";
        close.addEventListener("click", () => notice.remove());
        notice.append(close);
        document.body.append(notice);
    }

    function detail(answer) {
        return answer.clone().json().then((told) => String(told.detail || ""), () => "");
    }

    window.fetch = async function (...given) {
        const answer = await plain.apply(this, given);
        if (answer.status === 401) {
            const here = window.location.pathname + window.location.search;
            say("Your session is over, so this page no longer changes.", "/login?next=" + encodeURIComponent(here));
        } else if (answer.status === 403) {
            detail(answer).then((words) => say(words || "You may not do this."));
        }
        return answer;
    };
})();
