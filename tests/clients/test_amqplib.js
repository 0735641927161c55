#!/usr/bin/env node
// amqplib (npm) against a three-node cluster, while a node is killed: promises and confirm channels.
// Installs amqplib into build/clients/node_modules by package name on first use.
const { execFileSync, spawnSync } = require('child_process');
const fs = require('fs');
const path = require('path');
const top = path.resolve(__dirname, '../..');
const dir = path.join(process.env.WARREN_BUILD || path.join(top, 'build'), 'clients');
let n = 0, bad = 0;
const ok = (good, text, why) => { n++; if (!good) bad++; console.log(`${good ? 'ok' : 'not ok'} ${n} - ${text}`); if (!good && why) console.log(`#   ${why}`); };

function load() {
  try { return require(path.join(dir, 'node_modules', 'amqplib')); } catch { /* not there yet */ }
  fs.mkdirSync(dir, { recursive: true });
  spawnSync('npm', ['install', '--silent', '--no-audit', '--no-fund', '--prefix', dir, 'amqplib@0.10'], { stdio: 'ignore', timeout: 120000 });
  try { return require(path.join(dir, 'node_modules', 'amqplib')); } catch (e) { return null; }
}
const amqp = load();
if (!amqp) { console.log('ok 1 - amqplib # SKIP the npm package amqplib cannot be installed here'); process.exit(0); }
const cluster = (...args) => execFileSync(path.join(top, 'deploy/local-cluster'), args, { encoding: 'utf8' });
const url = i => `amqp://guest:guest@127.0.0.1:${5671 + i}`;

async function main() {
  cluster('up', '3');
  const a = await amqp.connect(url(1)), b = await amqp.connect(url(3));
  const ch = await a.createConfirmChannel(), cc = await b.createChannel();
  await ch.assertQueue('lib', { durable: true, arguments: { 'x-queue-type': 'quorum' } });
  await ch.assertExchange('lib-x', 'topic', { durable: true });
  await ch.bindQueue('lib', 'lib-x', 'a.*');
  const got = [];
  await cc.prefetch(100);
  await cc.consume('lib', m => { got.push([Number(m.content.toString()), m.fields.redelivered]); cc.ack(m); });
  const confirmed = [];
  const publish = i => new Promise((yes, no) => ch.publish('lib-x', 'a.b', Buffer.from(String(i)), { persistent: true, headers: { i } }, e => e ? no(e) : (confirmed.push(i), yes())));
  const all = [];
  for (let i = 0; i < 2000; i++) {
    all.push(publish(i));
    if (i === 1000) cluster('kill', 'n2');
    if (i % 50 === 0) await new Promise(r => setTimeout(r, 10));
  }
  await Promise.all(all);
  ok(confirmed.length === 2000, 'every publish is confirmed while n2 is killed', `${confirmed.length} confirmed`);
  for (let k = 0; k < 1000 && new Set(got.map(g => g[0])).size < 2000; k++) await new Promise(r => setTimeout(r, 10));
  const fresh = got.filter(g => !g[1]).map(g => g[0]);
  ok(new Set(got.map(g => g[0])).size === 2000, 'every confirmed message is delivered', `${got.length} deliveries`);
  ok(fresh.every((x, i) => i === 0 || x > fresh[i - 1]), 'in order, and no repeat without the flag');
  let code = 0;
  const wrong = await a.createChannel(); wrong.on('error', e => { code = e.code; });
  try { await wrong.checkQueue('nope'); } catch { /* expected */ }
  ok(code === 404, 'a missing queue is a channel error 404', `code ${code}`);
  await ch.checkQueue('lib').then(() => ok(true, 'the connection lives on after a channel error'), e => ok(false, 'the connection lives on after a channel error', e));
  await a.close(); await b.close();
}
main().catch(e => ok(false, 'no exception', e.stack)).finally(() => { cluster('down'); console.log(`1..${n}`); process.exit(bad ? 1 : 0); });
