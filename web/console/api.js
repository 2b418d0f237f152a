// Calls of the node's API. The API key is in sessionStorage: it ends with the tab, and no other tab has it.

const STORED_KEY = "latchgate.key";
const PATIENCE_MS = 15_000;

let apiKey = stored();
/** How far the server's clock is ahead of this one, in ms: within a second. */
let clockAheadMs = 0;
const listeners = { signedOut: () => {}, answered: () => {}, failed: () => {} };

function stored() {
  try {
    return sessionStorage.getItem(STORED_KEY);
  } catch {
    return null;
  }
}

export function useKey(key) {
  apiKey = key;
  try {
    if (key) sessionStorage.setItem(STORED_KEY, key);
    else sessionStorage.removeItem(STORED_KEY);
  } catch {
    // Without storage, the key lives as long as the page.
  }
}

/** Stands for all apps, in what lists something. */
export const ALL_APPS = "*";

/** The app that the page is about; empty for the caller's own. */
let appOfPage = "";
/** The one that its address names. */
let appInAddress;

export function showApp(app, inAddress) {
  appOfPage = app;
  appInAddress = inAddress;
}

/** The address of a page about the same app, or about another one. */
export function addressOf(path, { app = appInAddress, ...query } = {}) {
  const params = new URLSearchParams(Object.entries({ app, ...query }).filter(([, value]) => value));
  return params.size > 0 ? `#/${path}?${params}` : `#/${path}`;
}

/** What shows or ends what an app has. What takes, keeps or releases a lease is always the caller's own. */
function isOfAnyApp(path) {
  return /^(\/v1\/(locks|events|operations)|\/metrics\/samples)\b/.test(path) && !/^\/v1\/(operations\/pre|[^/]+\/[^/]+\/(acquire|renew|release|fence|post|heartbeat))$/.test(path);
}

export function hasKey() {
  return apiKey !== null;
}

/** on("signedOut" | "answered" | "failed", function) */
export function on(what, listener) {
  listeners[what] = listener;
}

/** The server's time, in ms. */
export function serverNow() {
  return Date.now() + clockAheadMs;
}

/** An answer that is not 2xx, or none. `code` is that of the problem, or `no-answer`. */
export class Problem extends Error {
  constructor(status, body) {
    super(body.detail ?? body.title ?? `The node answered with status ${status}.`);
    this.status = status;
    this.code = body.code ?? "";
    this.body = body;
  }

  /** The node has no such endpoint. */
  get isMissing() {
    return this.status === 404 && (this.code === "not-found" || this.code === "");
  }
}

const NO_ANSWER = { code: "no-answer", title: "No answer", detail: "The node does not answer." };

/** The raw answer. `query` leaves out empty values. Without a `signal`, the call ends after 15 s, or `patienceMs`. */
export async function request(method, path, { query = {}, body, signal, headers = {}, patienceMs = PATIENCE_MS } = {}) {
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== undefined && value !== null && value !== "" && value !== false) params.set(name, String(value));
  }
  if (appOfPage && isOfAnyApp(path) && !params.has("app")) params.set("app", appOfPage);
  const text = params.toString();
  const url = text ? `${path}?${text}` : path;
  const all = { ...headers };
  if (apiKey) all.authorization = `Bearer ${apiKey}`;
  if (body !== undefined) all["content-type"] = "application/json";
  const signals = [signal, patienceMs && AbortSignal.timeout(patienceMs)].filter(Boolean);
  let response;
  try {
    response = await fetch(url, {
      method,
      headers: all,
      body: body === undefined ? undefined : typeof body === "string" ? body : JSON.stringify(body),
      signal: signals.length ? AbortSignal.any(signals) : undefined,
      cache: "no-store",
      credentials: "omit",
      redirect: "error",
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    const problem = new Problem(0, NO_ANSWER);
    listeners.failed(problem);
    throw problem;
  }
  const date = Date.parse(response.headers.get("date") ?? "");
  // The header has whole seconds.
  if (!Number.isNaN(date)) clockAheadMs = Math.abs(date + 500 - Date.now()) < 1500 ? 0 : date + 500 - Date.now();
  if (response.ok) {
    listeners.answered(response);
    return response;
  }
  const problem = new Problem(response.status, await problemOf(response));
  if (problem.status === 401) listeners.signedOut(problem);
  listeners.failed(problem);
  throw problem;
}

async function problemOf(response) {
  try {
    return (await response.json()) ?? {};
  } catch {
    return {};
  }
}

export async function call(method, path, options) {
  const text = await textOf(method, path, options);
  return text ? JSON.parse(text) : {};
}

export async function textOf(method, path, options) {
  return bodyOf(await request(method, path, options), options?.signal);
}

/** The text of an answer, which may end early. */
export async function bodyOf(response, signal) {
  try {
    return await response.text();
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Problem(0, NO_ANSWER);
  }
}

export const get = (path, options) => call("GET", path, options);
export const post = (path, body, options) => call("POST", path, { ...options, body });

export function lockPath(key, verb = "") {
  return `/v1/locks/${encodeURIComponent(key)}${verb && `/${verb}`}`;
}
