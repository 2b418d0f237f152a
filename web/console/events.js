// Server-sent events, read through fetch: an EventSource cannot send an API key.

import { request } from "./api.js";

/**
 * Reads a stream until `signal` is aborted, and connects again with the last id, so that no event is missed.
 * `onState` gets `open` or `closed`, with the problem if there is one; `onEvent` gets the kind and the data.
 */
export async function follow(path, query, { signal, onEvent, onState }) {
  let lastId;
  let pauseMs = 500;
  while (!signal.aborted) {
    let problem = null;
    try {
      const headers = { accept: "text/event-stream", ...(lastId && { "last-event-id": lastId }) };
      const response = await request("GET", path, { query, signal, headers, patienceMs: 0 });
      onState("open");
      for await (const frame of frames(response.body, signal)) {
        pauseMs = 500;
        if (frame.id) lastId = frame.id;
        if (frame.data) onEvent(frame.kind, JSON.parse(frame.data));
      }
    } catch (error) {
      if (signal.aborted) return;
      problem = error;
    }
    if (signal.aborted) return;
    onState("closed", problem);
    // A refusal other than 429 stays the same.
    if (problem?.status >= 400 && problem.status < 500 && problem.status !== 429) return;
    await pause(pauseMs, signal);
    pauseMs = Math.min(pauseMs * 2, 8000);
  }
}

async function* frames(body, signal) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    while (!signal.aborted) {
      const { value, done } = await reader.read();
      if (done) return;
      rest += value;
      const blocks = rest.split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) yield parse(block);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function parse(block) {
  const frame = { kind: "message", id: "", data: "" };
  for (const line of block.split("\n")) {
    const at = line.indexOf(":");
    if (at <= 0) continue;
    const value = line.slice(at + 1).replace(/^ /, "");
    const field = line.slice(0, at);
    if (field === "event") frame.kind = value;
    else if (field === "id") frame.id = value;
    else if (field === "data") frame.data += value;
  }
  return frame;
}

function pause(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });
}
