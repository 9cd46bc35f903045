// Answers how often each path was asked for, and has timers, promises and buffers at work meanwhile.
const asked = new Map();
let kept = [];
setInterval(() => {
  kept.push(Buffer.alloc(64 << 10, kept.length));
  if (kept.length > 256) kept = kept.slice(128);
}, 5);
require('http').createServer(async (request, response) => {
  await new Promise(setImmediate);
  const n = (asked.get(request.url) || 0) + 1;
  asked.set(request.url, n);
  response.end(`${request.url} ${n}\n`);
}).listen(80, '0.0.0.0').keepAliveTimeout = 600000;
