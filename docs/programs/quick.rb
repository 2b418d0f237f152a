require "erb"
require "json"
require "net/http"
require "securerandom"

def call(path, body)
  answer = Net::HTTP.post(URI(ENV.fetch("LATCHGATE_URL", "http://127.0.0.1:7070") + path), JSON.generate(body))
  [answer.is_a?(Net::HTTPSuccess), JSON.parse(answer.body)]
end

abort "LATCHGATE_URL is set and empty" if ENV["LATCHGATE_URL"] == ""

lock = "/v1/locks/#{ERB::Util.url_encode('orders/42')}"
lease = { lease_id: SecureRandom.uuid }
holder = Process.pid
begin
  mine, grant = call("#{lock}/acquire", lease.merge(ttl_ms: 30_000, wait_ms: 20_000))
  abort "could not get the lock: #{grant['code']}" unless mine
  puts "working with token #{grant['token']}"
ensure
  call("#{lock}/release", lease) if Process.pid == holder
end

mine, go = call("/v1/operations/pre", { operation: "charge", contents: { order: 42, from: "ruby" } })
if mine
  noted, answer = call("/v1/operations/#{go['id']}/post", { stamp: go["stamp"], outcome: "success", result: { receipt: 7 } })
  abort "done, but not recorded: #{answer['code']}" unless noted
  puts "done now"
elsif go["code"] == "operation-duplicate"
  puts "#{go['result']} done earlier"
else
  abort "not now: #{go['code']}"
end
