// A search for a sentence that was printed, or for a flag: lunr reads a dash before a word as "without
// it", and fails on other signs, where people have copied both.
const QUERY = 2;  // the type of the message in which Material for MkDocs hands a query to its worker
const postMessage = Worker.prototype.postMessage;

Worker.prototype.postMessage = function (message, ...rest) {
  if (message && message.type === QUERY && typeof message.data === "string") {
    message = { ...message, data: message.data.replace(/[^\p{L}\p{N}_.]+/gu, " ").trim() };
  }
  return postMessage.call(this, message, ...rest);
};
