-- Ends the grant of whoever holds the lock, with all its holds. Follows queue.lua.
--
-- KEYS  1 claim  2 queue  3 waiters  4 token
-- ARGV  1 the token of the grant to end; "" for any
--
-- Replies
--   1           a grant was ended
--   0           nobody holds the lock, or under another token
--   DISTLOCK …  the claim is not ours
local claim, foreign = read_claim(redis.call('GET', CLAIM))
if foreign then
	return foreign
end
if not claim or ARGV[1] ~= '' and ARGV[1] ~= claim.token then
	return 0
end
hand_over(claim.token)
return 1
