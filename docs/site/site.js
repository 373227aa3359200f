// Tables that are wider than the window are scrolled with the keyboard too.
for (const moment of ["load", "resize"]) {
  addEventListener(moment, () => {
    for (const box of document.querySelectorAll(".md-typeset__scrollwrap")) {
      if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
      else box.removeAttribute("tabindex");
    }
  });
}
