// Perfetto's trace processor as its web page runs it, between standard input and output: requests in, replies out.
// Usage: node perfetto_engine.js FOLDER, with engine_bundle.js and trace_processor.wasm of a build of ui.perfetto.dev.
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const folder = process.argv[2];
const complain = (...words) => console.error(...words);
process.on("uncaughtException", (error) => {
  complain(`${error.message ?? error}`); // node would print the bundle's one long line
  process.exit(1);
});

/** What a browser's worker loads files with. */
class XMLHttpRequest {
  open(method, url) {
    this.url = url;
  }
  send() {
    const content = fs.readFileSync(path.join(folder, path.basename(this.url)));
    this.status = 200;
    this.response = content.buffer.slice(content.byteOffset, content.byteOffset + content.length);
  }
}

// A worker as far as the bundle looks; without `process`, by which it would know node, for which it was not built.
const worker = {
  TextDecoder, TextEncoder, URL, XMLHttpRequest, performance, crypto: globalThis.crypto, setTimeout, clearTimeout,
  WorkerGlobalScope: class {},
  console: { log: complain, warn: complain, error: complain },
  location: { href: "http://localhost/engine_bundle.js" },
};
worker.self = worker;
vm.createContext(worker);
vm.runInContext(fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8"), worker);

const port = { postMessage: (reply) => fs.writeSync(1, reply) };
worker.self.onmessage({ data: port });
// By then the engine has started; it asks for an array of its own world.
const Bytes = vm.runInContext("Uint8Array", worker);
setImmediate(() => port.onmessage({ data: Bytes.from(fs.readFileSync(0)) }));
