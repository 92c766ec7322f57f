// Browser side of the SQL page: asks POST /api/sql, shows the answer, and keeps the address and the history.
// See dashboard/pages/sql.
(function () {
    "use strict";
    const helios = (window.dash_clientside = window.dash_clientside || {}).helios =
        window.dash_clientside.helios || {};
    const functions = (window.dashAgGridFunctions = window.dashAgGridFunctions || {});
    const HISTORY = "helios-sql-history", MOST_HISTORY = 30;
    const LONGEST_ADDRESS = 8000; // characters of a statement that every server and mail program passes on
    const MOST_SERIES = 4;
    const nothing = () => window.dash_clientside.no_update;
    const part = (name) => document.getElementById("sql-" + name);
    const set = (name, properties) => window.dash_clientside.set_props("sql-" + name, properties);
    const counted = (count, word) => count.toLocaleString("en-US") + " " + word + (count === 1 ? "" : "s");

    let answer = null; // {columns, rows, truncated, cut_values} of the page that is open
    let running = null; // the AbortController of a statement that runs
    let wanted = { x: null, y: [], kind: "" }; // what the address or the operator chose to draw
    let fitting = ""; // the kind that the page chose by itself

    functions.sqlValue = (value) => (value === null || value === undefined ? "NULL" : String(value));

    function say(text, isProblem) {
        const status = part("status");
        if (!status) return;
        status.textContent = text;
        status.classList.toggle("bad", Boolean(isProblem));
    }

    function busy(isBusy) {
        set("run", { disabled: isBusy });
        set("cancel", { disabled: !isBusy });
    }

    function note(changes) {
        const query = new URLSearchParams(window.location.search);
        for (const [name, value] of Object.entries(changes))
            value === null || value === "" ? query.delete(name) : query.set(name, value);
        const text = query.toString();
        window.history.replaceState(window.history.state, "", window.location.pathname + (text ? "?" + text : ""));
    }

    // A mistake's place is selected in the editor, so that typing mends it.
    function pointAt(statement, offset) {
        const editor = part("statement");
        if (!editor || editor.value !== statement || typeof offset !== "number") return;
        const word = statement.slice(offset).match(/^[\w$."]+|^./u);
        editor.focus();
        editor.setSelectionRange(offset, offset + (word ? word[0].length : 0));
    }

    function remembered() {
        try {
            const found = JSON.parse(window.localStorage.getItem(HISTORY) || "[]");
            return Array.isArray(found) ? found.filter((entry) => typeof entry === "string") : [];
        } catch (_) {
            return []; // no storage, or somebody else's: history is a convenience
        }
    }

    function remember(statement) {
        const entries = [statement, ...remembered().filter((entry) => entry !== statement)].slice(0, MOST_HISTORY);
        try {
            window.localStorage.setItem(HISTORY, JSON.stringify(entries));
        } catch (_) {
            return;
        }
        showHistory();
    }

    function showHistory() {
        const list = part("history");
        if (!list) return;
        const entries = remembered();
        list.replaceChildren(
            ...entries.map((entry) => {
                const button = document.createElement("button");
                button.type = "button";
                button.textContent = entry.replace(/\s+/g, " ").slice(0, 160);
                button.title = entry;
                button.addEventListener("click", () => write(entry));
                return button;
            }),
        );
        if (!entries.length) list.textContent = "Nothing yet.";
    }

    function write(statement) {
        set("statement", { value: statement });
        const editor = part("statement");
        if (editor) editor.focus();
    }

    async function post(body, signal) {
        const response = await window.fetch("/api/sql", {
            method: "POST", signal: signal, credentials: "same-origin",
            headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
        });
        if (response.ok) return response;
        const problem = await response.json().catch(() => ({}));
        const said = { 401: "Sign in again to run statements.", 403: "Your key may not run statements." }[response.status];
        throw Object.assign(new Error(said || problem.detail || "The server answered " + response.status + "."), {
            offset: problem.offset,
        });
    }

    async function ask(statement, rows) {
        if (running) running.abort();
        const mine = (running = new AbortController());
        busy(true);
        say("Running…");
        note({ q: statement.length <= LONGEST_ADDRESS ? statement : null, rows: rows === "1000" ? null : rows });
        try {
            const response = await post({ statement: statement, rows: Number(rows) }, mine.signal);
            const found = await response.json();
            if (running !== mine || !part("status")) return;
            answer = found;
            remember(statement);
            say(summary(found, response.headers.get("Helios-Milliseconds"), statement));
            show(found);
        } catch (error) {
            if (running !== mine || !part("status")) return;
            if (error.name === "AbortError") say("Cancelled; nothing was changed.");
            else {
                say(error instanceof TypeError ? "The server cannot be reached; try again." : error.message, true);
                pointAt(statement, error.offset);
            }
        } finally {
            if (running === mine) {
                running = null;
                if (part("status")) busy(false);
            }
        }
    }

    function summary(found, milliseconds, statement) {
        const rows = counted(found.rows.length, "row");
        let text = found.rows.length ? rows : "No rows: nothing in the store fits";
        if (found.truncated === "rows") text = "The first " + rows + "; there are more. Ask for more rows, or narrow the statement";
        if (found.truncated === "bytes") text = "The first " + rows + "; the answer is larger than 4 MiB. Select fewer columns";
        text += ", in " + Math.round(Number(milliseconds)).toLocaleString("en-US") + " ms.";
        if (found.cut_values) text += " " + counted(found.cut_values, "long value") + " shown in part.";
        if (statement.length > LONGEST_ADDRESS) text += " The statement is too long for this page's address.";
        return text;
    }

    const isNumber = (value) => typeof value === "number" || (typeof value === "string" && /^-?\d{16,}$/.test(value));
    const isTime = (value) => typeof value === "string" && /^\d{4}-\d\d-\d\d[ T]\d\d/.test(value);
    const every = (at, test) => {
        const values = answer.rows.map((row) => row[at]).filter((value) => value !== null);
        return values.length > 0 && values.every(test);
    };

    function width(column, at) {
        const longest = answer.rows.slice(0, 200).reduce((most, row) => Math.max(most, functions.sqlValue(row[at]).length), 0);
        return Math.min(420, Math.max(80, 26 + 8 * Math.max(longest, column.name.length + 2)));
    }

    function show(found) {
        const definitions = found.columns.map((column, at) => ({
            field: "c" + at, headerName: column.name, headerTooltip: column.name, width: width(column, at),
            type: every(at, isNumber) ? "rightAligned" : undefined,
            valueFormatter: { function: "sqlValue(params.value)" },
            cellClassRules: { "sql-null": "params.value == null" },
        }));
        const rows = found.rows.map((row) => Object.fromEntries(row.map((value, at) => ["c" + at, value])));
        set("grid", { columnDefs: definitions, rowData: rows });
        set("result", { hidden: false });
        offer(found);
    }

    // What can be drawn of this answer; the choice before it stays where it still fits.
    function offer(found) {
        const all = found.columns.map((column, at) => ({ value: String(at), label: column.name || "column " + (at + 1) }));
        const numbers = all.filter((option) => every(Number(option.value), isNumber));
        const fits = (options, value) => options.some((option) => option.value === value);
        const times = all.find((option) => every(Number(option.value), isTime));
        const x = fits(all, wanted.x) ? wanted.x : (times || all[0]).value;
        const kept = wanted.y.filter((value) => fits(numbers, value));
        // What a statement computes stands last, behind the keys that it groups by.
        const free = numbers.filter((option) => option.value !== x);
        const y = kept.length ? kept : (free.length ? free : numbers).slice(-1).map((option) => option.value);
        fitting = every(Number(x), (value) => isNumber(value) || isTime(value)) ? "line" : "bars";
        wanted = { x: x, y: y, kind: wanted.kind };
        if (!wanted.kind) set("kind", { value: fitting });
        set("x", { data: all, value: x });
        set("y", { data: numbers, value: y });
        set("pick-tick", { data: Date.now() });
    }

    helios.sqlOpen = function (state) {
        answer = null;
        if (running) running.abort();
        running = null;
        wanted = { x: state.x, y: state.y, kind: state.kind };
        fitting = state.kind || "line";
        window.requestAnimationFrame(() => {
            showHistory();
            if (state.run) part("run").click();
            else say("Nothing has been asked yet. Choose a question, or run the statement as it stands.");
        });
        return true;
    };

    helios.sqlAsk = function (clicks, rows) {
        const editor = part("statement");
        if (clicks && editor) ask(editor.value, rows);
        return nothing();
    };

    helios.sqlChoose = function (question, state) {
        const chosen = question && state.questions[question];
        if (!chosen) return "";
        write(chosen.sql);
        return chosen.how;
    };

    helios.sqlView = function (view, rows) {
        note({ view: view === "table" ? null : view, rows: rows === "1000" ? null : rows });
        return [view !== "table", view !== "chart"];
    };

    helios.sqlPick = function (x, y, kind, view) {
        if (!answer || view !== "chart") return nothing();
        const known = (at) => Number(at) < answer.columns.length;
        const series = (y || []).filter(known).slice(0, MOST_SERIES);
        if (x === null || x === undefined || !known(x)) return nothing();
        wanted = { x: x, y: series, kind: kind === fitting ? wanted.kind : kind };
        note({ x: x, y: series.join(","), kind: kind });
        if (!series.length) return null;
        const column = (at) => ({
            name: answer.columns[at].name.slice(0, 200), values: answer.rows.map((row) => row[at]),
        });
        return { x: column(x), y: series.map(column), kind: kind };
    };

    function save(blob, name) {
        const link = document.createElement("a");
        link.href = URL.createObjectURL(blob);
        link.download = name;
        link.click();
        window.setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    }

    // The statement as it stands is asked again, so that a file may hold more than a page shows.
    async function download(form) {
        const editor = part("statement");
        say("Preparing the file…");
        try {
            const response = await post({ statement: editor.value, rows: 50000, format: form, timeout_s: 30 });
            const cut = response.headers.get("Helios-Truncated") !== "no", rows = response.headers.get("Helios-Rows");
            save(await response.blob(), "helios" + (cut ? "-first-" + rows + "-rows" : "") + "." + form);
            say(counted(Number(rows), "row") + " in the file" + (cut ? "; there are more than a file holds, and its name says so." : "."), cut);
        } catch (error) {
            say(error instanceof TypeError ? "The server cannot be reached; try again." : error.message, true);
        }
    }

    // Columns of a table that is opened, once; they are too many to come with the page.
    let reference = null;
    async function listColumns(details) {
        const list = details.querySelector("dl");
        if (list.childElementCount) return;
        list.textContent = "Loading…";
        try {
            reference = reference || (await (await window.fetch("/dashboard/assets/sql-reference.json")).json());
            const table = reference.tables.find((each) => each.name === details.dataset.table);
            const columns = table.columns.filter(([, type]) => type !== "date" || details.dataset.dialect !== "sqlite");
            list.replaceChildren(...columns.map(columnEntry));
        } catch (_) {
            reference = null;
            list.textContent = "The columns cannot be loaded now; close this and open it again.";
        }
    }

    function columnEntry([name, type, meaning]) {
        const [entry, term, button, kind, text] = ["div", "dt", "button", "span", "dd"].map((tag) => document.createElement(tag));
        button.type = "button";
        button.textContent = name;
        button.addEventListener("click", () => insert(name));
        kind.className = "muted";
        kind.textContent = type;
        text.textContent = meaning;
        term.append(button, kind);
        entry.append(term, text);
        return entry;
    }

    function insert(name) {
        const editor = part("statement");
        const before = editor.value.slice(0, editor.selectionStart), behind = editor.value.slice(editor.selectionEnd);
        const gap = /[\w$]$/.test(before) ? " " : "";
        set("statement", { value: before + gap + name + behind });
        window.requestAnimationFrame(() => {
            editor.focus();
            editor.selectionStart = editor.selectionEnd = (before + gap + name).length;
        });
    }

    const CLICKS = {
        "sql-cancel": () => running && running.abort(),
        "sql-export-csv": () => download("csv"),
        "sql-export-json": () => download("json"),
        "sql-link": async () => {
            const editor = part("statement");
            note({ q: editor.value.length <= LONGEST_ADDRESS ? editor.value : null });
            try {
                await navigator.clipboard.writeText(window.location.href);
                say("The link is copied.");
            } catch (_) {
                say("This browser does not let the page copy; the link is the page's address.");
            }
        },
    };
    document.addEventListener("click", (event) => {
        const button = event.target.closest && event.target.closest("button");
        if (button && CLICKS[button.id]) CLICKS[button.id]();
    });
    document.addEventListener("toggle", (event) => event.target.open && event.target.dataset.table && listColumns(event.target), true);
    document.addEventListener("keydown", (event) => {
        if (!event.target || event.target.id !== "sql-statement") return;
        if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
            event.preventDefault();
            part("run").click();
        }
        if (event.key === "Escape" && running) running.abort();
    });
})();
