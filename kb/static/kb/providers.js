// What was tested is not what the form says any more.
document.addEventListener("input", ({ target }) => {
  if (target.form?.matches(".md-form") && target.name !== "name") document.getElementById("md-tested").replaceChildren();
});
// A name that is chosen from the server's list goes into the field of the model.
document.addEventListener("change", (event) => {
  if (event.target.matches("[data-md-names]")) document.getElementById("id_model").value = event.target.value;
});
document.addEventListener("htmx:afterSwap", (event) => {
  const names = event.target.querySelector?.("[data-md-names]");
  const model = document.getElementById("id_model");
  if (names && model && ![...names.options].some((option) => option.value === model.value)) model.value = names.value;
  // A private address has to be confirmed: the box appears with the refusal that asks for it.
  if (event.target.querySelector?.("[data-md-private]")) document.getElementById("md-private").hidden = false;
});
