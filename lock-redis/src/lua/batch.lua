-- Many attempts and releases at once, as far as nobody competes for their locks.
--
-- KEYS  for each item: claim, token
-- ARGV  for each item: "OWNER\nHOLD\n", ttl in ms, asker; a ttl of "" is a release
--
-- Replies with a list, in the order of the items:
--   token   the attempt is granted, with one hold
--   1       released; the lock is free
--   0       nothing was done: this one has to be sent by itself
local time = redis.call('TIME')
local now = #time[2] == 6 and time[1] .. time[2] or time[1] .. string.rep('0', 6 - #time[2]) .. time[2]
local answers = {}
for i = 1, #KEYS / 2 do
	local claim, token = KEYS[2 * i - 1], KEYS[2 * i]
	local id, ttl, asker = ARGV[3 * i - 2], ARGV[3 * i - 1], ARGV[3 * i]
	local answer = 0
	if ttl == '' then
		local value = redis.pcall('GET', claim)
		if type(value) == 'string' and string.sub(value, 1, 67) == '-' .. id then
			redis.call('DEL', claim)
			answer = 1
		end
	elseif redis.call('SET', claim, '-' .. id .. now .. '\n' .. now .. '\n' .. asker, 'NX', 'PX', ttl) then
		local last = redis.pcall('SET', token, now, 'PX', RETENTION, 'GET')
		if not last or type(last) == 'string' and #last == #now and last < now and string.find(last, '^%d+$') then
			answer = now
		else
			-- As it was before: somebody waits, the clock was set back, or the key is not ours.
			redis.call('DEL', claim)
			if type(last) == 'string' then
				redis.call('SET', token, last)
				if string.find(last, '^%d+%+?$') then
					redis.call('PEXPIRE', token, RETENTION)
				end
			end
		end
	end
	answers[i] = answer
end
return answers
