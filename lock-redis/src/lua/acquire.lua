-- One attempt to take a lock, or to wait for it.
--
-- KEYS  1 claim  2 queue  3 waiters  4 token
-- ARGV  1 owner  2 hold  3 ttl, ms  4 asker
--       5 the channel of a waiter that queues; "-" when it queues and has none, "" when it does
--         not queue
--       6 claim window, ms  7 how long a token is remembered after its grant, ms
--
-- Replies
--   {1, token, holds}                                  granted
--   {0, claim, ms left, position, queued, now in µs}   busy; the position is 0 when it is not
--                                                      in the queue
--   DISTLOCK …                                         a key holds something that is not ours
--
-- This first part is the whole of an uncontended attempt: three writes at most, no functions.
local time = redis.call('TIME')
local now = time[1] .. string.format('%06d', time[2])
local owner, hold, ttl, asker = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local fresh = redis.call('EXISTS', KEYS[2]) == 0
	and redis.call('SET', KEYS[1], owner .. '\n' .. hold .. '\n' .. now .. '\n' .. now .. '\n' .. asker, 'NX', 'PX', ttl)
local last = fresh and redis.pcall('SET', KEYS[4], now, 'PX', ARGV[7], 'GET')
if fresh and (not last or type(last) == 'string' and #last == #now and last < now and string.find(last, '^%d+$')) then
	return { 1, now, 1 }
end
