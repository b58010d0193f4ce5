// Puts in what has changed. Without it the page loads itself again.
const main = document.querySelector("main");
new EventSource("/events").onmessage = (event) => {
  main.innerHTML = event.data;
};
