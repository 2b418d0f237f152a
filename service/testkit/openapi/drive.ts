// Drives a node with openapi-fetch and the types that openapi-typescript generates: node drive.js URL [API_KEY].
import createClient from 'openapi-fetch'
import type { components, paths } from './api.js'

declare const process: { argv: string[] }

const [url, apiKey] = process.argv.slice(2)
const headers = apiKey ? { Authorization: `Bearer ${apiKey}` } : undefined
const client = createClient<paths>({ baseUrl: url, headers })
// Keys are plain text: the client encodes them.
const key = `typescript/${crypto.randomUUID()} ü%`
const params = { path: { key } }

function ok(name: string, condition: boolean, seen: unknown) {
    console.log(condition ? `ok typescript: ${name}` : `not ok typescript: ${name}: ${JSON.stringify(seen)}`)
}

function present<T>(value: T | undefined | null): T {
    if (value == null) throw new Error('the answer is not the expected one')
    return value
}

const first = await client.POST('/v1/locks/{key}/acquire', { params })
const granted = present(first.data)
ok('acquire without a body', first.response.status === 200 && granted.key === key, first)
ok('a mode is one of an enum', granted.mode === 'exclusive', granted.mode)

const body: components['schemas']['AcquireRequest'] = { owner: 'other' }
const held = await client.POST('/v1/locks/{key}/acquire', { params, body })
ok('423 lock-held', held.error?.code === 'lock-held' && held.error.holders?.[0]?.owner === granted.owner, held.error)

const renew = (lease_id: string) => client.POST('/v1/locks/{key}/renew', { params, body: { lease_id, ttl_ms: 60_000 } })
const renewed = await renew(granted.lease_id)
ok('renew', renewed.data?.revocation === null, renewed)

const released = await client.POST('/v1/locks/{key}/release', { params, body: { lease_id: granted.lease_id } })
ok('release', released.data?.still_held === 0, released)

const lost = await renew(granted.lease_id)
ok('410 lease-lost', lost.error?.code === 'lease-lost' && lost.error.why === 'released', lost.error)

const pre = () =>
    client.POST('/v1/operations/pre', { body: { operation: 'charge', contents: { order: key, amount: '19.90' } } })
const go = present((await pre()).data)
ok('pre', go.attempt === 1, go)
const posted = await client.POST('/v1/operations/{id}/post', {
    params: { path: { id: go.id } },
    body: { stamp: go.stamp, outcome: 'success', result: { receipt: 7 } },
})
ok('post', posted.data?.outcome === 'success', posted)
const done = await pre()
ok(
    '409 operation-duplicate',
    done.error?.code === 'operation-duplicate' && JSON.stringify(done.error.result) === '{"receipt":7}',
    done.error,
)
