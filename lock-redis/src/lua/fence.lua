-- KEYS[1] keeps the newest ticket: a token of 20 digits, a blank, its owner. They are compared as
-- text, since Lua's numbers are exact up to 2^53 only.
local ticket = ARGV[1] .. ' ' .. ARGV[2]
local newest = redis.call('GET', KEYS[1])
if newest and newest ~= ticket and string.sub(newest, 1, 20) >= ARGV[1] then
  return redis.error_reply('FENCED ' .. string.sub(newest, 1, 20))
end
if newest ~= ticket then
  redis.call('SET', KEYS[1], ticket)
end
