-- Who holds a lock and who waits for it; changes nothing.
--
-- KEYS  1 claim  2 queue  3 waiters
--
-- Replies
--   nil                                           nobody holds it and nobody waits
--   {claim, ms left, now in µs, waiter, waiter, …}  the claim is "" when there is none
local claim = redis.call('GET', KEYS[1])
local queue = redis.call('ZRANGE', KEYS[2], 0, -1)
if not claim and #queue == 0 then
	return false
end
local time = redis.call('TIME')
local answer = { claim or '', redis.call('PTTL', KEYS[1]), time[1] .. string.format('%06d', time[2]) }
local entries = {}
local all = redis.call('HGETALL', KEYS[3])
for i = 1, #all, 2 do
	entries[all[i]] = all[i + 1]
end
for _, hold in ipairs(queue) do
	answer[#answer + 1] = entries[hold]
end
return answer
