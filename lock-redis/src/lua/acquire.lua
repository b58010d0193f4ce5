-- One attempt to take a lock, or to wait for it.
--
-- KEYS  1 claim  2 queue  3 waiters  4 token
-- ARGV  1 "OWNER\nHOLD\n"  2 ttl, ms  3 asker
--       4 the channel of a waiter that queues, "-" when it queues and has none; missing when it
--         does not queue
--
-- Replies
--   token                                              granted, with one hold
--   {1, token, holds}                                  granted
--   {0, claim, ms left, position, queued, now in µs}   busy; the position is 0 when it is not
--                                                      in the queue
--   DISTLOCK …                                         a key holds something that is not ours
--
-- This first part is the whole of an uncontended attempt: two writes, no functions. The last token
-- is marked with a "+" as long as somebody may be in the queue, and so is the claim.
local time = redis.call('TIME')
local now = #time[2] == 6 and time[1] .. time[2] or time[1] .. string.rep('0', 6 - #time[2]) .. time[2]
local id, ttl, asker = ARGV[1], ARGV[2], ARGV[3]

local fresh = redis.call('SET', KEYS[1], '-' .. id .. now .. '\n' .. now .. '\n' .. asker, 'NX', 'PX', ttl)
local last = fresh and redis.pcall('SET', KEYS[4], now, 'PX', RETENTION, 'GET')
if fresh and (not last or type(last) == 'string' and #last == #now and last < now and string.find(last, '^%d+$')) then
	return now
end
