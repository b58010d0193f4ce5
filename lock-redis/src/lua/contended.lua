-- The second part of acquire.lua: everything that is not a first grant of an idle lock.
local owner, hold = string.sub(id, 1, 32), string.sub(id, 34, 65)
local channel = ARGV[4]

-- The decimal number after `digits`, exact at any length.
local function successor(digits)
	local head, digit, nines = string.match(digits, '^(%d-)([0-8]?)(9*)$')
	if digit == '' then
		digit = '0'
	end
	return head .. (digit + 1) .. string.rep('0', #nines)
end

local function is_less(a, b)
	return #a < #b or #a == #b and a < b
end

-- The digits of a token, and its mark; nil when it is not one.
local function read_token(last)
	return string.match(last or '0', '^(%d+)(%+?)$')
end

-- Grants the lock under a token that is larger than every earlier one.
local function grant(last)
	local digits = read_token(last)
	if not digits then
		return redis.error_reply(FOREIGN)
	end
	local token = now
	if not is_less(digits, now) then
		token = successor(digits)
		if is_less('18446744073709551615', token) then
			return redis.error_reply('DISTLOCK the last token is the largest there is')
		end
	end
	local waited_for = redis.call('EXISTS', QUEUE) == 1
	redis.call('SET', KEYS[4], token .. (waited_for and '+' or ''), 'PX', RETENTION)
	redis.call('SET', CLAIM, (waited_for and '+' or '-') .. id .. token .. '\n' .. now .. '\n' .. asker, 'PX', ttl)
	return { 1, token, 1 }
end

if fresh then
	-- The first part has set the claim already, but the last token is in the way.
	if type(last) == 'string' and redis.call('EXISTS', QUEUE) == 0 then
		local answer = grant(last)
		if answer.err then
			redis.call('SET', KEYS[4], last)
			redis.call('DEL', CLAIM)
		end
		return answer
	end
	redis.call('DEL', CLAIM)
	if type(last) ~= 'string' then
		return last
	end
	if not read_token(last) then
		redis.call('SET', KEYS[4], last)
		return redis.error_reply(FOREIGN)
	end
	redis.call('SET', KEYS[4], last, 'PX', RETENTION)
end

-- Lets the owner's other claims in the queue know that they may enter.
local function tell_owner()
	if redis.call('HDEL', WAITERS, 'many:' .. owner) == 0 then
		return
	end
	local all = redis.call('HGETALL', WAITERS)
	for i = 1, #all, 2 do
		if string.sub(all[i + 1], 1, 33) == owner .. '\n' then
			tell(channel_of(all[i + 1]), all[i])
		end
	end
end

local value = redis.call('GET', CLAIM)
local claim, foreign = read_claim(value)
if foreign then
	return foreign
end

if claim and claim.owner == owner then
	local left = redis.call('PTTL', CLAIM)
	local holds = claim.holds
	if not has_hold(holds, hold) then
		holds = holds .. ',' .. hold
		redis.call('SET', CLAIM, claim.mark .. owner .. '\n' .. holds .. claim.rest, 'PX', math.max(left, tonumber(ttl)))
	elseif left < tonumber(ttl) then
		redis.call('PEXPIRE', CLAIM, ttl)
	end
	if redis.call('ZREM', QUEUE, hold) == 1 then
		forget(hold, owner)
		tell_owner()
	end
	return { 1, claim.token, count(holds) }
end

local turn = claim and claim.reserved
if not claim then
	turn = hand_over(hold)
	value = turn and turn ~= hold and redis.call('GET', CLAIM)
end
if turn == hold or not claim and not turn then
	local answer = grant(redis.call('GET', KEYS[4]))
	if not answer.err then
		tell_owner()
	end
	return answer
end

local position = redis.call('ZRANK', QUEUE, hold)
if channel ~= '' then
	-- Whoever releases or comes next sees that somebody waits.
	local digits, mark = read_token(redis.call('GET', KEYS[4]))
	if not digits then
		return redis.error_reply(FOREIGN)
	end
	if mark == '' then
		redis.call('SET', KEYS[4], digits .. '+', 'PX', RETENTION)
	end
	if claim and claim.mark == '-' then
		redis.call('SETRANGE', CLAIM, 0, '+')
	end
	local since = now
	local prolong = true
	if position then
		since = string.match(redis.call('HGET', WAITERS, hold) or '', '^%x+\n[^\n]*\n(%d+)\n') or now
	else
		-- The order is that of the scores, whatever the clock does.
		local score = now
		local tail = redis.call('ZRANGE', QUEUE, -1, -1, 'WITHSCORES')[2]
		if tail and tonumber(tail) >= tonumber(now) then
			score = string.format('%.0f', tonumber(tail) + 1)
		end
		redis.call('ZADD', QUEUE, score, hold)
		if redis.call('HSETNX', WAITERS, 'owner:' .. owner, hold) == 0 then
			redis.call('HSET', WAITERS, 'many:' .. owner, '')
		end
		-- Those who come to a long queue do so often enough that some of them will do.
		prolong = not tail or string.sub(now, -2) == '00'
	end
	redis.call('HSET', WAITERS, hold, owner .. '\n' .. channel .. '\n' .. since .. '\n' .. asker)
	if prolong then
		redis.call('PEXPIRE', QUEUE, RETENTION)
		redis.call('PEXPIRE', WAITERS, RETENTION)
	end
end

local ahead = turn and 1 or 0
local queued = redis.call('ZCARD', QUEUE)
if channel ~= '' and not position then
	position = queued - 1
end
return {
	0,
	value or '',
	redis.call('PTTL', CLAIM),
	position and position + 1 + ahead or 0,
	queued + ahead,
	now,
}
