-- Many attempts and releases at once, as far as nobody competes for their locks.
--
-- KEYS  for each item: claim, queue, token
-- ARGV  for each item: "OWNER\nHOLD\n", ttl in ms, asker; a ttl of "" is a release
--
-- Replies with a list, in the order of the items:
--   token   the attempt is granted, with one hold
--   1       released; the lock is free
--   0       nothing was done: this one has to be sent by itself
local time = redis.call('TIME')
local now = string.format('%s%06d', time[1], time[2])
local answers = {}
for i = 1, #KEYS, 3 do
	local claim, queue, token = KEYS[i], KEYS[i + 1], KEYS[i + 2]
	local id, ttl = ARGV[i], ARGV[i + 1]
	local answer = 0
	if redis.call('EXISTS', queue) == 0 then
		if ttl == '' then
			local value = redis.pcall('GET', claim)
			if type(value) == 'string' and string.sub(value, 1, 66) == id then
				redis.call('DEL', claim)
				answer = 1
			end
		elseif redis.call('SET', claim, id .. now .. '\n' .. now .. '\n' .. ARGV[i + 2], 'NX', 'PX', ttl) then
			local last = redis.pcall('SET', token, now, 'PX', RETENTION, 'GET')
			if not last or type(last) == 'string' and #last == #now and last < now and string.find(last, '^%d+$') then
				answer = now
			else
				-- As it was before: the last token is larger than the time, or is not ours.
				redis.call('DEL', claim)
				if type(last) == 'string' then
					redis.call('SET', token, last)
					if string.find(last, '^%d+$') then
						redis.call('PEXPIRE', token, RETENTION)
					end
				end
			end
		end
	end
	answers[#answers + 1] = answer
end
return answers
