-- Who holds locks and who waits for them; changes nothing.
--
-- KEYS  for each lock: claim, queue, waiters
--
-- Replies with a list, in the order of the locks:
--   nil                                             nobody holds it and nobody waits
--   {claim, ms left, now in µs, waiter, waiter, …}  the claim is "" when there is none
local time = redis.call('TIME')
local now = time[1] .. string.format('%06d', time[2])

local function look(claim, queue, waiters)
	local holder = redis.call('GET', claim)
	local holds = redis.call('ZRANGE', queue, 0, -1)
	if not holder and #holds == 0 then
		return false
	end
	local answer = { holder or '', redis.call('PTTL', claim), now }
	local entries = {}
	local all = redis.call('HGETALL', waiters)
	for i = 1, #all, 2 do
		entries[all[i]] = all[i + 1]
	end
	for _, hold in ipairs(holds) do
		answer[#answer + 1] = entries[hold]
	end
	return answer
end

local answers = {}
for i = 1, #KEYS, 3 do
	answers[#answers + 1] = look(KEYS[i], KEYS[i + 1], KEYS[i + 2])
end
return answers
