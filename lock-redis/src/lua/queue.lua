-- What the scripts share: the claim, the token, the queue and the hand-over.
local CLAIM, QUEUE, WAITERS, TOKEN = KEYS[1], KEYS[2], KEYS[3], KEYS[4]

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
	return nil, redis.error_reply(FOREIGN)
end

local function has_hold(holds, hold)
	return string.find(',' .. holds .. ',', ',' .. hold .. ',', 1, true) ~= nil
end

local function count(holds)
	local _, commas = string.gsub(holds, ',', '')
	return commas + 1
end

-- The server's time in µs since 1970, as digits.
local function micros()
	local time = redis.call('TIME')
	return time[1] .. string.rep('0', 6 - #time[2]) .. time[2]
end

-- The digits of a token, and its mark; nil when it is not one.
local function read_token(last)
	return string.match(last or '0', '^(%d+)(%+?)$')
end

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

-- A token that is larger than every earlier one; or nil and why there is none.
local function next_token(last, now)
	local digits = type(last) ~= 'table' and read_token(last)
	if not digits then
		return nil, redis.error_reply(FOREIGN)
	end
	local token = now
	if not is_less(digits, now) then
		token = successor(digits)
		if is_less('18446744073709551615', token) then
			return nil, redis.error_reply('DISTLOCK the last token is the largest there is')
		end
	end
	return token
end

-- Grants the lock, marked with whether somebody waits: an error when the server refuses that.
local function grant(id, token, since, asker, lease, waited_for)
	local set = redis.pcall('SET', TOKEN, token .. (waited_for and '+' or ''), 'PX', RETENTION)
	if set.err then
		return set
	end
	local mark = waited_for and '+' or '-'
	return redis.pcall('SET', CLAIM, mark .. id .. token .. '\n' .. since .. '\n' .. asker, 'PX', lease)
end

-- Drops what is remembered of a waiter that has left the queue.
local function forget(hold, owner)
	redis.call('HDEL', WAITERS, hold, 'owner:' .. owner)
end

-- The owner, the channel, the time of its coming and the asker of a waiter.
local function read_entry(entry)
	return string.match(entry, '^(%x+)\n([^\n]*)\n(%d+)\n(.*)$')
end

-- Notices to the process that asks, whose channel is `here`: they go with the reply.
local notices = {}

-- Sends a notice to a waiter's process. False when it is gone for certain: a refused PUBLISH and
-- a waiter without a channel count as heard.
local function tell(channel, notice)
	if channel == here then
		notices[#notices + 1] = notice
		return true
	end
	return channel == '-' or redis.pcall('PUBLISH', channel, notice) ~= 0
end

-- Lets the owner's other claims in the queue know that they may enter.
local function tell_owner(owner)
	if redis.call('HDEL', WAITERS, 'many:' .. owner) == 0 then
		return
	end
	local all = redis.call('HGETALL', WAITERS)
	for i = 1, #all, 2 do
		local its, channel = read_entry(all[i + 1])
		if its == owner then
			tell(channel, all[i])
		end
	end
end

-- Those near the front look after themselves from now on, should the ones ahead hang: as part of
-- the notice when they are in its process, else by one of their own.
local function add_near(channel, notice, near, entries)
	for i, hold in ipairs(near) do
		local _, its = read_entry(entries[i + 1] or '')
		if its == channel then
			notice = notice .. ' +' .. hold
		elseif its then
			tell(its, '+' .. hold)
		end
	end
	return notice
end

-- The lock is free: grants it to the first waiter whose process is there, for the claim window,
-- and tells it the token and the time. When nobody waits, or no token can be had, it stays free.
--
-- `last` is the last token where that is known. When it is the turn of `claimer`, who is here
-- already, it is only taken out of the queue. Returns the hold whose turn it is; nil for nobody.
local function hand_over(last, claimer)
	local now, token
	while true do
		local first = redis.call('ZPOPMIN', QUEUE)[1]
		if not first then
			redis.call('DEL', CLAIM)
			return nil
		end
		local near = redis.call('ZRANGE', QUEUE, 0, 1)
		local entries = redis.call('HMGET', WAITERS, first, unpack(near))
		local owner, channel, _, asker = read_entry(entries[1] or '')
		if owner then
			forget(first, owner)
			if first == claimer then
				return first
			end
			if not now then
				now = micros()
				token = next_token(last or redis.pcall('GET', TOKEN), now)
			end
			local notice, id = first, owner .. '\n' .. first .. '\n'
			if token and not grant(id, token, now, asker, WINDOW, #near > 0).err then
				notice = first .. '=' .. token .. '@' .. now
			else
				-- Out of memory, or the token's key is not ours: a release still frees the lock.
				redis.call('DEL', CLAIM)
			end
			if tell(channel, add_near(channel, notice, near, entries)) then
				tell_owner(owner)
				return first
			end
		end
	end
end
