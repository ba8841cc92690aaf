-- Sends the same body again and again: wrk ... -s post.lua URL -- BODY_FILE CONTENT_TYPE ACCEPT
-- Prints one line of JSON at the end; times are in microseconds, as wrk counts them.

function init(args)
  local file = assert(io.open(args[1], "rb"))
  wrk.method = "POST"
  wrk.body = file:read("*a")
  wrk.headers["Content-Type"] = args[2]
  wrk.headers["Accept"] = args[3]
  file:close()
end

function done(summary, latency, requests)
  local bad = summary.errors
  io.write(string.format(
    '\n{"requests": %d, "duration_us": %d, "p50_us": %d, "p99_us": %d, "refused": %d, "broken": %d}\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99), bad.status,
    bad.connect + bad.read + bad.write + bad.timeout))
end
