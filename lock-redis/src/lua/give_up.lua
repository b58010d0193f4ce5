-- The second part of release.lua: several holds, waiters, and claims that are not held.
local owner, hold = string.sub(id, 1, 32), string.sub(id, 34, 65)
here = ARGV[2]

local function reply(answer)
	return #notices == 0 and answer or { answer, table.concat(notices, ' ') }
end

local claim, foreign = read_claim(value)
if foreign then
	return foreign
end

if claim and claim.owner == owner and has_hold(claim.holds, hold) then
	local left = {}
	for other in string.gmatch(claim.holds, '%x+') do
		if other ~= hold then
			left[#left + 1] = other
		end
	end
	if #left == 0 then
		hand_over(claim.token)
	else
		redis.call('SET', CLAIM, claim.mark .. owner .. '\n' .. table.concat(left, ',') .. claim.rest, 'KEEPTTL')
	end
	return reply(#left)
end

local answer = -2
local entry = redis.call('HGET', WAITERS, hold)
if entry and string.sub(entry, 1, 33) == owner .. '\n' then
	redis.call('ZREM', QUEUE, hold)
	forget(hold, owner)
	answer = -1
end
if not claim then
	hand_over()
end
return reply(answer)
