-- The second part of acquire.lua: everything that is not a first grant of an idle lock.
local owner, hold = string.sub(id, 1, 32), string.sub(id, 34, 65)
local channel = ARGV[4]

-- Grants the lock to who asks.
local function take(last)
	local token, refusal = next_token(last, now)
	if not token then
		return refusal
	end
	local waited_for = redis.call('EXISTS', QUEUE) == 1
	local set = grant(id, token, now, asker, ttl, waited_for)
	return set.err and set or { 1, token, 1 }
end

if fresh then
	-- The first part has set the claim already, but the last token is in the way.
	if type(last) == 'string' and redis.call('EXISTS', QUEUE) == 0 then
		local answer = take(last)
		if answer.err then
			redis.call('SET', TOKEN, last)
			redis.call('DEL', CLAIM)
		end
		return answer
	end
	redis.call('DEL', CLAIM)
	if type(last) ~= 'string' then
		return last
	end
	if not read_token(last) then
		redis.call('SET', TOKEN, last)
		return redis.error_reply(FOREIGN)
	end
	redis.call('SET', TOKEN, last, 'PX', RETENTION)
end

local value = redis.call('GET', CLAIM)
local claim, foreign = read_claim(value)
if foreign then
	return foreign
end

if not claim then
	local turn = hand_over(nil, hold)
	if turn == hold or not turn then
		local answer = take(redis.call('GET', TOKEN))
		if not answer.err then
			tell_owner(owner)
		end
		return answer
	end
	value = redis.call('GET', CLAIM)
	claim = read_claim(value)
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
		tell_owner(owner)
	end
	return { 1, claim.token, count(holds) }
end

-- Puts the hold at the end of the queue, or lets it keep its place; the error when it cannot.
local function enqueue(rank)
	-- Whoever releases or comes next sees that somebody waits; the marks of a claim and of its
	-- token are the same.
	if not claim or claim.mark == '-' then
		local digits, mark = read_token(redis.call('GET', TOKEN))
		if not digits then
			return redis.error_reply(FOREIGN)
		end
		if mark == '' then
			redis.call('SET', TOKEN, digits .. '+', 'PX', RETENTION)
		end
		if claim then
			redis.call('SETRANGE', CLAIM, 0, '+')
		end
	end
	local since = now
	local prolong = true
	if rank then
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

local rank = redis.call('ZRANK', QUEUE, hold)
local refusal = channel and enqueue(rank)
if refusal then
	return refusal
end
local queued = redis.call('ZCARD', QUEUE)
local position = rank and rank + 1 or channel and queued or 0
return { 0, value or '', redis.call('PTTL', CLAIM), position, queued, now }
