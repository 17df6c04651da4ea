// A click on a picture opens it at its full size: figures with many panels are small on the page.
document.addEventListener("DOMContentLoaded", () => {
  for (const picture of document.querySelectorAll(".bd-article p > img")) {
    picture.style.cursor = "zoom-in";
    picture.addEventListener("click", () => window.open(picture.src, "_blank", "noopener"));
  }
});
