-- Extends leases, each on its own; never shortens one and never makes one.
--
-- KEYS  the claims
-- ARGV  for each claim: owner, hold, ttl in ms
--
-- Replies with a list, in the order of the keys:
--   1           extended
--   0           nobody holds it, or not by this hold
--   2           another owner holds it
--   a text      why this one cannot be read
local answers = {}
for i, key in ipairs(KEYS) do
	local owner, hold, ttl = ARGV[3 * i - 2], ARGV[3 * i - 1], tonumber(ARGV[3 * i])
	local value = redis.pcall('GET', key)
	if not value then
		answers[i] = 0
	elseif type(value) == 'table' then
		answers[i] = value.err
	else
		local holder, holds = string.match(value, '^[-+](%x+)\n([%x,]+)\n%d+\n%d+\n')
		if holder and holder ~= owner then
			answers[i] = 2
		elseif holder and string.find(',' .. holds .. ',', ',' .. hold .. ',', 1, true) then
			if redis.call('PTTL', key) < ttl then
				redis.call('PEXPIRE', key, ttl)
			end
			answers[i] = 1
		elseif holder then
			answers[i] = 0
		else
			answers[i] = 'DISTLOCK the key holds a value that is not a lock'
		end
	end
end
return answers
