-- Gives up one hold, or a place in the queue.
--
-- KEYS  1 claim  2 queue  3 waiters  4 token
-- ARGV  1 "OWNER\nHOLD\n"  2 the channel that the asker listens on; missing when it does not
--
-- Replies
--   0, 1, …     released; so many holds are left
--   -1          it waited, and does no more
--   -2          neither a live hold nor a waiter
--   {…, text}   as above, and a notice for the asker's channel
--   DISTLOCK …  the claim is not ours
--
-- This first part is the whole of an uncontended release: a "+" would mean that somebody waits.
local id = ARGV[1]
local value = redis.call('GET', KEYS[1])
if value and string.sub(value, 1, 67) == '-' .. id then
	redis.call('DEL', KEYS[1])
	return 0
end
