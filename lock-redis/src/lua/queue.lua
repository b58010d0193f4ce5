-- What the scripts share: the claim, the queue and the hand-over.
local CLAIM, QUEUE, WAITERS = KEYS[1], KEYS[2], KEYS[3]

local FOREIGN = 'DISTLOCK the key holds a value that is not a lock'

-- What a claim says, as a table; nil when there is none, and an error reply when it is not ours.
local function read_claim(value)
	if not value then
		return nil
	end
	local mark, owner, holds, token, rest = string.match(value, '^([-+])(%x+)\n([%x,]+)\n(%d+)(\n%d+\n.*)$')
	if owner then
		return { mark = mark, owner = owner, holds = holds, token = token, rest = '\n' .. token .. rest }
	end
	local hold, entry = string.match(value, '^reserved\n(%x+)\n(.*)$')
	if hold then
		return { reserved = hold, entry = entry }
	end
	return nil, redis.error_reply(FOREIGN)
end

local function has_hold(holds, hold)
	return string.find(',' .. holds .. ',', ',' .. hold .. ',', 1, true) ~= nil
end

local function count(holds)
	local _, commas = string.gsub(holds, ',', '')
	return commas + 1
end

-- Drops what is remembered of a waiter that has left the queue.
local function forget(hold, owner)
	redis.call('HDEL', WAITERS, hold, 'owner:' .. owner)
end

local function channel_of(entry)
	return string.match(entry, '^%x+\n([^\n]*)\n')
end

-- Sends a notice to a waiter's process. False when it is gone for certain: a refused PUBLISH and
-- a waiter without a channel count as heard.
local function tell(channel, notice)
	return channel == '-' or redis.pcall('PUBLISH', channel, notice) ~= 0
end

-- Those near the front look after themselves from now on, should the ones ahead hang: as part of
-- the notice when they are in its process, else by one of their own.
local function add_near(channel, notice)
	for _, near in ipairs(redis.call('ZRANGE', QUEUE, 0, 1)) do
		local entry = redis.call('HGET', WAITERS, near)
		local its = entry and channel_of(entry)
		if its == channel then
			notice = notice .. ' +' .. near
		elseif its then
			tell(its, '+' .. near)
		end
	end
	return notice
end

-- The lock is free: reserves it for the first waiter whose process is there.
--
-- Returns the hold that it is reserved for, nil when nobody waits. When it is the turn of
-- `claimer`, who is here already, nothing is reserved.
local function hand_over(claimer)
	while true do
		local first = redis.call('ZPOPMIN', QUEUE)[1]
		if not first then
			redis.call('DEL', CLAIM)
			return nil
		end
		local entry = redis.call('HGET', WAITERS, first)
		if entry then
			forget(first, string.sub(entry, 1, 32))
			if first == claimer then
				return first
			end
			local channel = channel_of(entry)
			if tell(channel, add_near(channel, first)) then
				local set = redis.pcall('SET', CLAIM, 'reserved\n' .. first .. '\n' .. entry, 'PX', WINDOW)
				if set.err then
					-- Out of memory: a release still has to free the lock.
					redis.call('DEL', CLAIM)
				end
				return first
			end
		end
	end
end
