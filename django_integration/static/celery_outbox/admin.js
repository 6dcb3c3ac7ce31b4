/* The lists of the outbox: what is above them is folded on a narrow screen, and a switch reloads them
   from time to time. No inline script, so that a strict Content-Security-Policy allows it. */
"use strict";

document.addEventListener("DOMContentLoaded", () => {
    const details = document.querySelector(".outbox-details");
    if (details && matchMedia("(max-width: 767px)").matches) {
        details.open = false;
    }
});

/* The switch: the browser remembers it. Nothing is reloaded while rows are ticked, text is selected or
   a field is being filled in, nor in a tab that is not seen. */
document.addEventListener("DOMContentLoaded", () => {
    const KEY = "celery-outbox-refresh";
    const box = document.getElementById("outbox-refresh");
    let timer = null;
    if (!box) {
        return;
    }

    function remembered() {
        try {
            return localStorage.getItem(KEY) === "on";
        } catch {
            return false; // the browser stores nothing for this site
        }
    }

    function remember() {
        try {
            localStorage.setItem(KEY, box.checked ? "on" : "off");
        } catch {
            // then it is off again on the next page
        }
    }

    function isChanged(field) {
        if (field.type === "checkbox") {
            return field.checked;
        }
        const initial = field.matches("select") ? "" : field.defaultValue;
        return field.type !== "hidden" && field.value !== initial;
    }

    function isInUse() {
        const fields = [...document.querySelectorAll("#changelist :is(input, select, textarea)")];
        const focused = document.activeElement;
        return document.hidden
            || fields.some((field) => isChanged(field) || (field === focused && field.type !== "checkbox"))
            || !document.getSelection().isCollapsed;
    }

    function wait() {
        clearTimeout(timer);
        if (box.checked) {
            timer = setTimeout(() => isInUse() ? wait() : location.reload(), 1000 * box.dataset.seconds);
        }
    }

    box.checked = remembered();
    box.parentElement.hidden = false;
    box.addEventListener("change", () => {
        remember();
        wait();
    });
    wait();
});
