-- swlimit as a script, for servers that load no modules: the decisions and replies of the module's commands.
--
--   EVALSHA    <sha> 1 key ALLOW limit window resolution [COST n] [PARTIAL] [STRICT] [WARMUP duration [COLD n]]
--                            [BLOCK duration] [AT unix-ms]
--   EVALSHA_RO <sha> 1 key PEEK limit window resolution [COST n] [PARTIAL] [STRICT] [WARMUP duration [COLD n]]
--                            [AT unix-ms]
--   EVALSHA    <sha> 2 key key MALLOW limit window resolution cost limit window resolution cost [STRICT] [AT unix-ms]
--   EVALSHA    <sha> 1 key BUDGET limit until [COST n] [PARTIAL | FORCE] [AT unix-ms]
--   EVALSHA    <sha> 1 key HOLD limit ttl id [COST n] [AT unix-ms]
--
-- and RECORD, REFUND, BLOCK, UNBLOCK, INFO, RELEASE, RENEW, HOLDERS, ADMIT and SETTLE: the keys are those of EVALSHA,
-- ARGV is the command's name and its other words. A script cannot wait, so HOLD has no WAIT.
-- ALLOW and PEEK without BLOCK and WARMUP also take one packed argument, which costs less than words: a byte of
-- flags (1: count, as ALLOW does; 2: PARTIAL; 4: STRICT), then limit, resolution (ms), subintervals, cost and,
-- optionally, AT as unsigned little-endian integers of 8 bytes: struct.pack('<BI8I8I8I8', ...). The reply is packed
-- too, as three little-endian doubles: granted, remaining, reset_after if the first one is positive, that is, if units
-- are granted; else minus remaining, retry_after, reset_after. Errors are no different. A MALLOW of two keys and more
-- takes the same: flags 9, or 13 with STRICT, then the four numbers of each key's quota, and optionally AT. Its reply
-- is that to words.
--
-- A key is a string. All numbers are little-endian doubles that hold integers. A window, and a block:
--
--   offset  0  'swl1', four bytes
--           4  resolution R in ms; 0 when nothing is counted
--          12  subintervals N of the window; 0 when nothing is counted
--          20  newest: the youngest subinterval that holds a count
--          28  through: running total of units up to and including the newest subinterval
--          36  slid: running total through subinterval newest - N
--          44  blocked: the block's instant in ms, 0 without one
--          52  number of slots
--          60  previous: running total before the newest subinterval
--          68  before: running total before the first slot
--          76  the slots, oldest first, 16 bytes each: a subinterval from newest - N on that holds a count and is not
--              the newest, and the running total through it
--
-- Where a key remembers since when it is in use, for a limit that rises, there are 8 bytes more: 'swl2', minus that
-- instant in ms, and from offset 12 on what stands above from offset 4 on.
--
-- A budget, 28 bytes: 'swb1', the units used, when the first of them was counted, and the end of the period (ms each).
--
-- Holds are a sorted set. Its members, by their scores, whose ranges are disjoint except those below 0:
--
--   'l'                      -(the largest token)
--   'n'                      the sum of all units - 1, less 2^53; only where there is a 'u'
--   't' .. id                -(the hold's token)
--   'e' .. id                the hold's end in ms, at most 9322559254740, which is less than 2^44
--   'u' .. id                units * 2^44; only where they are not 1, or something is reserved
--   'v' .. token .. clauses  token * 2^110; only where something is reserved: the token, then for each reservation its
--                            kind ('W': a rate with WARMUP), key and units, and where these count
--
-- So the number of live holds is one ZCOUNT, and so are their units where all are 1.
--
-- Running totals make the units of any span a difference of two numbers. A grant in the newest subinterval only
-- rewrites `through`: it leaves the expiry alone and costs the same whatever N is. Slots are found by bisection.
--
-- No result is rounded: numbers are integers below 2^53, which doubles hold, and products are compared with 2^53 before
-- they are used. Only instants within 30 years of 2^53 ms make replies that are not exact. The page how-it-decides.md
-- has the formulas (n[i]: the units of subinterval i, c: the current subinterval, e: the ms elapsed in it),
-- commands.md the replies; '§' is a paragraph of the specification that both tell: 1 units, 2 window, 3 time,
-- 4 commands for one key, 5 several limits, 6 changing the limit, 8 errors, 10 blocking, 13 holds, 14 budgets, 15 one
-- decision of everything, 17 limits that rise after idleness.

local MAX = 9007199254740991      -- 2^53 - 1, the largest limit, cost, count and instant
local LONGEST = 315360000000      -- 3650 days in ms
local MOST_SUBINTERVALS = 4096
local WRONGTYPE = 'WRONGTYPE Operation against a key holding the wrong kind of value'

---------------------------------------------------------------------------------------------------------------------
-- The call
---------------------------------------------------------------------------------------------------------------------

-- Redis and Valkey have doubles alone, of which 2^53 + 1 is none, and struct. To ask for it where it may lack costs.
local call, structs, keys = redis.pcall, 9007199254740993 % 2 == 0 and redis.breakpoint and struct, KEYS
if not structs then
  -- Test servers have no struct. Lua 5.3 and later have integers, which overflow and are written in another way: there
  -- all numbers are doubles as well, except in calls and replies. In a function of its own, since every constant of the
  -- chunk costs every call.
  structs, call = (function()
    local spread, tointeger = table.unpack or _G.unpack, math.tointeger
    local function each(change, ...)
      local values = {...}
      for i = 1, #values do values[i] = change(values[i]) end
      return spread(values)
    end

    local function bytes_of(number, count)
      local bytes = {}
      for i = 1, count do
        local byte = number % 256
        bytes[i], number = string.char(byte), (number - byte) / 256
      end
      return table.concat(bytes)
    end

    local function number_of(text, place, count)
      local number = 0
      for i = place + count - 1, place, -1 do number = number * 256 + string.byte(text, i) end
      return number
    end

    -- A double that holds an integer: 52 bits of a fraction, 11 of an exponent, the sign.
    local function double_bytes(number)
      if number == 0 then return string.rep('\0', 8) end
      local fraction, exponent = math.frexp(math.abs(number))
      fraction = (fraction * 2 - 1) * 4503599627370496
      local low = fraction % 281474976710656
      local high = ((number < 0 and 2048 or 0) + exponent + 1022) * 16 + (fraction - low) / 281474976710656
      return bytes_of(low, 6) .. bytes_of(high, 2)
    end

    local function double_of(text, place)
      local low, high = number_of(text, place, 6), number_of(text, place + 6, 2)
      local fraction, sign = high % 16 * 281474976710656 + low, high >= 32768 and -1 or 1
      local exponent = (high % 32768 - high % 16) / 16
      return exponent == 0 and 0 or sign * (1 + fraction / 4503599627370496) * 2 ^ (exponent - 1023)
    end

    local own = rawget(_G, 'struct') or string.pack and string or {
      pack = function(format, ...)
        local parts, numbers = {}, {...}
        for kind, size in string.gmatch(format, '(%a)(%d*)') do
          local number = numbers[#parts + 1]
          parts[#parts + 1] = kind == 'd' and double_bytes(number) or bytes_of(number, tonumber(size) or 1)
        end
        return table.concat(parts)
      end,
      unpack = function(format, text, place)
        local numbers = {}
        place = place or 1
        for kind, size in string.gmatch(format, '(%a)(%d*)') do
          size = kind == 'd' and 8 or tonumber(size) or 1
          numbers[#numbers + 1] = (kind == 'd' and double_of or number_of)(text, place, size)
          place = place + size
        end
        numbers[#numbers + 1] = place
        return spread(numbers)
      end}
    if not tointeger then return own, redis.pcall end

    local function double(value)
      if math.type(value) ~= 'integer' then return value end
      return value + (value < 0 and 2.0 ^ 64 or 0.0) -- none below 0 is packed as an integer
    end

    local function whole(value)
      if type(value) ~= 'table' then return math.type(value) == 'float' and tointeger(value) or value end
      for i, one in ipairs(value) do value[i] = whole(one) end
      return value
    end
    return {
      pack = function(format, ...) return own.pack(format, each(whole, ...)) end,
      unpack = function(...) return each(double, own.unpack(...)) end,
      whole = whole,                -- what makes the numbers of a reply integers
    }, function(...) return redis.pcall(each(whole, ...)) end
  end)()
end
local unpack, pack = structs.unpack, structs.pack
local packed = ARGV[1] or ''      -- an ALLOW, a PEEK or rates of several keys; nil where the command is none of these
local words                       -- whether it came in words, and is answered so
local several                     -- whether it is a MALLOW, of as many quotas as keys, or an ADMIT of two keys and more
local admitted                    -- the clauses of that ADMIT; `keys` are those of its rates then
local block, at                   -- options of ALLOW, and of others
local command                     -- its name
-- Its other words, by name: limit, cost, partial, strict, and R, N (R in ms), or `ends`, or ttl and id; force; age,
-- since, nx; warmup and cold; the units of REFUND and the duration of BLOCK. MALLOW and ADMIT have quotas: for each key
-- limit, cost and R, N, perhaps warmup and cold, or `ends`, or ttl and id; `rises`: one of them has a warmup. RELEASE,
-- RENEW and SETTLE have ids, SETTLE what is used of each key but the first, HOLDERS how many are shown. `holding`:
-- whether holds may be concerned.
local request
local PERIOD_END = 'ERR until must be a Unix time in milliseconds after now, at most 3650 days'

if #packed == 33 then             -- nothing more to find out
elseif #packed == 41 then
  at = unpack('<I8', packed, 34)
  if at > MAX then return {err = 'ERR packed call is out of range'} end
elseif keys[2] and (#packed - 32 * #keys == 1 or #packed - 32 * #keys == 9) then
  several = true
  if #packed % 32 == 9 then at = unpack('<I8', packed, #packed - 7) end
  for i = 2, #keys do
    for j = 1, i - 1 do
      if keys[i] == keys[j] then return {err = 'ERR key named twice'} end
    end
  end
  if at and at > MAX then return {err = 'ERR packed call is out of range'} end
elseif (packed == 'ADMIT' or packed == 'SETTLE') and keys[2] and not keys[65] and not structs.whole and (function()
    -- ADMIT and SETTLE as clients send them, whose words are read in a fraction of the time; others are read below.
    local words_of, match, count, list, place = table.concat, string.match, #ARGV, {}, 2
    for i = 2, #keys do
      for j = 1, i - 1 do
        if keys[i] == keys[j] then return end
      end
    end

    if packed == 'SETTLE' then
      if count ~= #keys + 1 or #ARGV[2] < 1 or #ARGV[2] > 128 then return end
      for i = 2, #keys do
        local used = (match(ARGV[i + 1], '^%d+$') or -1) + 0
        if used < 0 or used > MAX then return end
        list[i] = used
      end
      request = {ids = {ARGV[2]}, used = list, holding = true}
    else
      local holding, strict
      for i = 1, #keys do
        local kind = ARGV[place]
        local size = kind == 'BUDGET' and 4 or 5
        if count < place + size - 1 then return end
        -- A word with a space in it makes too many words.
        local limit, first, second, cost
        if kind == 'RATE' then
          local clause = words_of(ARGV, ' ', place, place + 4)
          limit, first, second, cost = match(clause, '^RATE (%d+) (%d+)ms (%d+)ms (%d+)$')
          if not limit then return end
          limit, first, second, cost = limit + 0, first + 0, second + 0, cost + 0
          if second == 0 or first % second > 0 or first / second > MOST_SUBINTERVALS then return end
          list[i] = {limit = limit, cost = cost, R = second, N = first / second}
        elseif kind == 'HOLD' then
          local id = ARGV[place + 3]
          limit, first = match(words_of(ARGV, ' ', place, place + 2), '^HOLD (%d+) (%d+)ms$')
          cost = match(ARGV[place + 4], '^%d+$')
          if not (limit and cost) or id == '' or #id > 128 then return end
          limit, first, cost, holding = limit + 0, first + 0, cost + 0, true
          list[i] = {limit = limit, cost = cost, ttl = first, id = id}
        elseif kind == 'BUDGET' then
          limit, second, cost = match(words_of(ARGV, ' ', place, place + 3), '^BUDGET (%d+) (%d+) (%d+)$')
          if not limit then return end
          limit, first, second, cost = limit + 0, 1, second + 0, cost + 0
          if second > MAX then return end
          list[i] = {limit = limit, cost = cost, ends = second}
        else return
        end
        if limit > MAX or first < 1 or first > LONGEST or cost < 1 or cost > MAX then return end
        place = place + size
      end
      if ARGV[place] == 'STRICT' then strict, place = true, place + 1 end
      if ARGV[place] then return end
      request = {quotas = list, strict = strict, holding = holding}
    end
    command, words, packed = packed, true, nil
    return true
  end)() then
else
  words = true

  -- HOLD and RELEASE as clients send them, of holds that have one unit each: without functions, too. What does not end
  -- here is decided by what follows. 17592186044415 is 2^44 - 1, which no end reaches.
  if #keys ~= 1 or structs.whole then -- an error, or not here
  elseif packed == 'HOLD' and #ARGV == 4 then
    local key, id, format = keys[1], ARGV[4], string.format
    local limit = string.find(ARGV[2], '^%d+$') and ARGV[2] + 0
    local ttl = (string.match(ARGV[3], '^(%d+)ms$') or 0) + 0
    local clock = limit and limit <= MAX and ttl >= 1 and ttl <= LONGEST and #id >= 1 and #id <= 128 and call('TIME')
    if clock and clock[2] then
      local micros = clock[2] + 0
      local now = clock[1] * 1000 + (micros - micros % 1000) / 1000
      local scores, stored = call('ZMSCORE', key, 'l', 'e' .. id), call('ZCARD', key)
      local count = call('ZCOUNT', key, format('(%d', now), '17592186044415')
      local token, number, ends = scores[1] and -scores[1] or 0, now * 1000, now + ttl
      if token >= number then number = token + 1 end
      -- No key, or only an 'e' and a 't' for each live hold, and the 'l'. No token is ahead of the clock.
      if scores[2] ~= false or type(count) == 'table' or not (stored == 0 or scores[1] and stored == 2 * count + 1)
        or now == 0 or token < (stored == 0 and 0 or 1) or token % 1 ~= 0 or number > MAX
        or number >= 1000 * (ends - 1) then -- not here
      elseif count < limit and count < 100000 then
        local expiry, text = format('%d', ends), format('%d', -number)
        local outlived = call('ZCOUNT', key, expiry, '17592186044415') -- by holds that end no earlier
        local done = call('ZADD', key, expiry, 'e' .. id, text, 't' .. id, text, 'l')
        if done ~= 2 and type(done) == 'table' then return {err = done.err} end
        if outlived == 0 then done = call('PEXPIREAT', key, expiry)
        else
          done = call('PTTL', key)
          if type(done) == 'number' then done = done >= 0 and done < ttl and call('PEXPIREAT', key, expiry) end
        end
        if done ~= 1 and type(done) == 'table' then -- a right is missing: take it back
          call('ZREM', key, 'e' .. id, 't' .. id, token == 0 and 'l' or 'x')
          if token > 0 then call('ZADD', key, scores[1], 'l') end
          return {err = done.err}
        end
        return {1, limit, limit - count - 1, 0, ttl, number}
      elseif limit == 0 then return {0, 0, 0, -1, 0, 0}
      elseif count == limit then
        local first = call('ZRANGEBYSCORE', key, '0', '+inf', 'WITHSCORES', 'LIMIT', '0', '1')
        if first[2] and first[2] % 1 == 0 then return {0, limit, 0, first[2] - now, 0, 0} end
      end
    end
  elseif packed == 'RELEASE' and #ARGV == 2 then
    local key, id = keys[1], ARGV[2]
    local clock, scores = call('TIME'), call('ZMSCORE', key, 'l', 'e' .. id, 'u' .. id)
    local token, ends, micros = scores[1] and -scores[1], scores[2], clock[2]
    if micros and ends and scores[3] == false and token and token > 0 and token <= MAX then
      micros, ends = micros + 0, ends + 0
      local now = clock[1] * 1000 + (micros - micros % 1000) / 1000
      if now > 0 and ends > now and ends < 17592186044416 and ends % 1 == 0 and token % 1 == 0 then
        local done = call('ZREM', key, 'e' .. id, 't' .. id)
        if done ~= 2 and type(done) == 'table' then return {err = done.err} end
        -- The key expires earlier where no other hold ends as late.
        if call('ZCOUNT', key, scores[2], '17592186044415') == 0 then
          local last = call('ZREVRANGEBYSCORE', key, scores[2], '0', 'WITHSCORES', 'LIMIT', '0', '1')
          local expiry = (token - token % 1000) / 1000 + 1
          if last[2] and last[2] + 0 > expiry then expiry = last[2] + 0 end
          if last.err then -- a right is missing: the hold has ended, and the expiry stays
          elseif expiry <= now then call('DEL', key)
          elseif expiry < ends then call('PEXPIREAT', key, string.format('%d', expiry)) end
        end
        return 1
      end
    end
  end

  local limit, R, N
  local cost, partial, strict = 1, false, false
  -- Every word is checked before a key is touched (§8).
  local function integer(word, least)
    local number = word and string.find(word, '^%d+$') and word + 0.0
    return number and number >= least and number <= MAX and number
  end

  local function milliseconds(word, least) -- a duration, §1
    local digits, unit = string.match(word or '', '^(%d+)(%a*)$')
    if not digits then return end
    unit = string.lower(unit)
    local scale = (unit == '' or unit == 's') and 1000 or unit == 'ms' and 1 or unit == 'm' and 60000
      or unit == 'h' and 3600000 or unit == 'd' and 86400000
    local ms = scale and (digits + 0.0) * scale
    return ms and ms >= least and ms <= LONGEST and ms
  end

  local function quota(from) -- limit, R, N of three words; or nil and the error, which is nil where a word is missing
    local most = integer(ARGV[from], 0)
    if not most then return nil, ARGV[from] and 'ERR limit must be an integer between 0 and 9007199254740991' end
    local window, resolution = milliseconds(ARGV[from + 1], 1), milliseconds(ARGV[from + 2], 1)
    if not (window and resolution) then
      local name, place = window and 'resolution' or 'window', window and from + 2 or from + 1
      return nil, ARGV[place] and 'ERR ' .. name .. ' must be a duration such as 60, 500ms, 5m, 1h or 7d'
    end
    if window % resolution ~= 0 then return nil, 'ERR resolution must divide the window evenly' end
    local subintervals = window / resolution
    if subintervals > MOST_SUBINTERVALS then
      return nil, string.format('ERR window / resolution is %.0f subintervals, above swlimit.max-subintervals (%d)',
        subintervals, MOST_SUBINTERVALS)
    end
    return most, resolution, subintervals
  end

  local function syntax(word) -- quoted in ASCII, as the module does, so that no byte breaks the reply's line
    local quoted = string.gsub(string.sub(word, 1, 64), '[%c"\'\\\128-\255]', function(byte)
      local short = {['\t'] = '\\t', ['\r'] = '\\r', ['\n'] = '\\n', ["'"] = "\\'", ['"'] = '\\"', ['\\'] = '\\\\'}
      return short[byte] or string.format('\\x%02x', string.byte(byte))
    end)
    return {err = "ERR syntax error near '" .. quoted .. "'"}
  end

  -- The value of WARMUP or COLD, or nil and the error.
  local function rise(name, word)
    if name == 'COLD' then
      local parts = integer(word, 2)
      if parts and parts <= 1000 then return parts end
      return nil, 'ERR COLD must be an integer between 2 and 1000'
    end
    local ms = milliseconds(word, 1)
    return ms, not ms and 'ERR WARMUP must be a duration such as 60, 500ms, 5m, 1h or 7d' or nil
  end

  local given = packed
  command = string.upper(given)
  local options, first = '', 2    -- the options it takes, and where in ARGV they begin
  if command ~= 'ALLOW' and command ~= 'PEEK' or structs.whole then -- a table that has room for what most commands say
    request = {limit = 0, ends = 0, R = 0, N = 0, cost = 1, partial = false, strict = false, force = false}
  end
  if command == 'ALLOW' then options, first = ' COST PARTIAL STRICT WARMUP COLD BLOCK AT ', 5
  elseif command == 'PEEK' then options, first = ' COST PARTIAL STRICT WARMUP COLD AT ', 5
  elseif command == 'RECORD' then options, first = ' COST STRICT AGE WARMUP COLD BLOCK AT ', 5
  elseif command == 'REFUND' then options, first = ' AGE SINCE AT ', 3
  elseif command == 'BLOCK' then options, first = ' NX GT AT ', 3
  elseif command == 'UNBLOCK' then options = ' AT '
  elseif command == 'MALLOW' or command == 'ADMIT' then options = ' STRICT AT '
  elseif command == 'BUDGET' then options, first = ' COST PARTIAL FORCE AT ', 4
  else
    request.holding = true
    if command == 'HOLD' then options, first = ' COST AT ', 5
    elseif command == 'RELEASE' then first = 3
    elseif command == 'RENEW' then first = 4
    elseif command == 'SETTLE' then options, first = ' AT ', 3
    elseif command == 'HOLDERS' then options = ' AT '
    elseif command ~= 'INFO' then return syntax(given)
    end
  end

  local count = #ARGV - 1
  local function arity()
    return {err = "ERR wrong number of arguments for 'swlimit." .. string.lower(command) .. "' command"}
  end

  local MOST_ID = 128
  local ID = 'ERR id must be 1 to 128 bytes'
  local TTL = 'ERR ttl must be a duration such as 60, 500ms, 5m, 1h or 7d'
  local LIMIT = 'ERR limit must be an integer between 0 and 9007199254740991'
  local period
  if command == 'BUDGET' or command == 'ADMIT' then
    period = function(from) -- limit and end of a budget, or nil and the error, as above
      local most, instant = integer(ARGV[from], 0), integer(ARGV[from + 1], 0)
      if not most then return nil, ARGV[from] and LIMIT end
      if not instant then return nil, ARGV[from + 1] and PERIOD_END end
      return most, instant
    end
  end

  local NUMKEYS = 'ERR numkeys must be a positive integer that matches the keys given'
  local MOST_ADMITTED = 64
  if command == 'MALLOW' or command == 'ADMIT' then
    if 2 + #KEYS + count < 7 then return arity() end
    if #KEYS == 0 or #KEYS > (command == 'ADMIT' and MOST_ADMITTED or count / 4) then return {err = NUMKEYS} end
    request.quotas, first = {}, 2
    for i = 1, #KEYS do
      local kind, asked, fault, word = 'RATE', {}, nil, ARGV[first]
      if command == 'ADMIT' then kind, first = string.upper(word or ''), first + 1
      elseif #ARGV < first + 3 then return {err = NUMKEYS} end
      if kind == 'RATE' then
        asked.limit, asked.R, asked.N = quota(first)
        fault, first = asked.R, first + 4
      elseif kind == 'BUDGET' then
        asked.limit, asked.ends = period(first)
        fault, first = asked.ends, first + 3
      elseif kind == 'HOLD' then
        request.holding = true
        asked.limit, asked.ttl, asked.id = integer(ARGV[first], 0), milliseconds(ARGV[first + 1], 1), ARGV[first + 2]
        fault = ARGV[first] and LIMIT
        local length = #(asked.id or '')
        if asked.limit and not (asked.ttl and length >= 1 and length <= MOST_ID) then
          asked.limit, fault = nil, asked.ttl and asked.id and ID or not asked.ttl and ARGV[first + 1] and TTL
        end
        first = first + 4
      else return word and syntax(word) or {err = NUMKEYS}
      end
      if asked.limit then
        asked.cost = integer(ARGV[first - 1], 1)
        fault = ARGV[first - 1] and 'ERR cost must be an integer between 1 and 9007199254740991'
      end
      if not asked.cost then return fault and {err = fault} or syntax(word) end
      for _, name in ipairs(kind == 'RATE' and {'WARMUP', 'COLD'} or {}) do
        if string.upper(ARGV[first] or '') ~= name then break end
        if not ARGV[first + 1] then return syntax(ARGV[first]) end
        asked[string.lower(name)], fault = rise(name, ARGV[first + 1])
        if fault then return {err = fault} end
        first, request.rises = first + 2, true
      end
      request.quotas[i] = asked
    end
  else
    if #KEYS ~= 1 and command ~= 'SETTLE' then return arity() end
    if #ARGV < first - 1 or command == 'INFO' and count > 0 then return arity() end
    if command == 'HOLD' then
      local id = ARGV[4]
      limit, request.ttl, request.id = integer(ARGV[2], 0), milliseconds(ARGV[3], 1), id
      if not limit then return {err = LIMIT} end
      if not request.ttl or #id < 1 or #id > MOST_ID then return {err = request.ttl and ID or TTL} end
    elseif command == 'RELEASE' or command == 'RENEW' then
      if command == 'RENEW' then
        request.ttl = milliseconds(ARGV[2], 1)
        if not request.ttl then return {err = TTL} end
      end
      -- Ids may be any bytes: only what stands at the end is an option.
      local start, last = first - 1, #ARGV
      if last >= start + 2 and string.upper(ARGV[last - 1]) == 'AT' then
        at, last = integer(ARGV[last], 0), last - 2
        if not at then return {err = 'ERR AT must be a Unix time in milliseconds'} end
      end
      local ids = {}
      request.ids = ids
      for i = start, last do
        if #ARGV[i] < 1 or #ARGV[i] > MOST_ID then return {err = ID} end
        ids[#ids + 1] = ARGV[i]
      end
      first = #ARGV + 1
    elseif command == 'HOLDERS' then
      local shown = 100
      if ARGV[2] and string.upper(ARGV[2]) ~= 'AT' then
        shown, first = integer(ARGV[2], 1), 3
        if not shown or shown > 10000 then return {err = 'ERR count must be an integer between 1 and 10000'} end
      end
      request.shown = shown
    elseif command == 'SETTLE' then
      if #KEYS == 0 or #KEYS > MOST_ADMITTED then return {err = NUMKEYS} end
      if #ARGV[2] < 1 or #ARGV[2] > MOST_ID then return {err = ID} end
      local used = {}
      request.ids, request.used, first = {ARGV[2]}, used, 3
      for i = 2, #KEYS do
        used[i] = integer(ARGV[first], 0)
        if not used[i] then
          return {err = ARGV[first] and 'ERR used must be an integer between 0 and 9007199254740991' or NUMKEYS}
        end
        first = first + 1
      end
    elseif first == 5 then
      limit, R, N = quota(2)
      if not limit then return {err = R} end
    elseif command == 'BUDGET' then
      limit, request.ends = period(2)
      if not limit then return {err = request.ends} end
    elseif command == 'REFUND' then
      request.units = integer(ARGV[2], 1)
      if not request.units then return {err = 'ERR units must be an integer between 1 and 9007199254740991'} end
    elseif command == 'BLOCK' then
      request.duration = milliseconds(ARGV[2], 1)
      if not request.duration then return {err = 'ERR BLOCK must be a duration such as 60, 500ms, 5m, 1h or 7d'} end
    end
  end

  local seen, i = {}, first
  while i <= #ARGV do
    local word = ARGV[i]
    local name = string.upper(word)
    if command == 'HOLD' and name == 'WAIT' then return {err = 'ERR WAIT needs the module'} end
    if seen[name] or not string.find(options, ' ' .. name .. ' ', 1, true) then return syntax(word) end
    if name == 'AGE' and seen.SINCE or name == 'SINCE' and seen.AGE or name == 'NX' and seen.GT
      or name == 'GT' and seen.NX then
      return syntax(word)
    end
    seen[name] = word
    if name == 'PARTIAL' or name == 'FORCE' then
      if seen.PARTIAL and seen.FORCE then return syntax(word) end
      partial = partial or name == 'PARTIAL'
    elseif name == 'STRICT' then strict = true
    elseif name == 'NX' then request.nx = true
    elseif name == 'GT' then request.gt = true
    else
      i = i + 1
      local value, fault = ARGV[i], nil
      if not value then return syntax(word) end
      if name == 'COST' then cost = integer(value, 1)
        if not cost then fault = 'ERR cost must be an integer between 1 and 9007199254740991' end
      elseif name == 'AGE' or name == 'BLOCK' then
        local ms = milliseconds(value, name == 'AGE' and 0 or 1)
        if name == 'AGE' then request.age = ms else block = ms end
        if not ms then fault = 'ERR ' .. name .. ' must be a duration such as 60, 500ms, 5m, 1h or 7d' end
      elseif name == 'WARMUP' or name == 'COLD' then
        request = request or {}
        request[string.lower(name)], fault = rise(name, value)
      elseif name == 'AT' or name == 'SINCE' then
        local instant = integer(value, 0)
        if name == 'AT' then at = instant else request.since = instant end
        if not instant then fault = 'ERR ' .. name .. ' must be a Unix time in milliseconds' end
      else return syntax(word) -- several names in one word
      end
      if fault then return {err = fault} end
    end
    i = i + 1
  end

  if seen.COLD and not seen.WARMUP then return syntax(seen.COLD) end
  local LATEST = 9007199254740 -- tokens are of microseconds
  if at and at > LATEST and (command == 'HOLD' or command == 'RENEW' or command == 'ADMIT') then
    return {err = 'ERR AT must be a Unix time in milliseconds'}
  end
  if request and (request.quotas or request.used) then
    local named = {}
    for _, name in ipairs(KEYS) do
      if named[name] then return {err = 'ERR key named twice'} end
      named[name] = true
    end
  end

  if not request then
    local flags = (command == 'ALLOW' and 1 or 0) + (partial and 2 or 0) + (strict and 4 or 0)
    packed = pack('<BI8I8I8I8', flags, limit, R, N, cost)
  else
    packed = nil
    request.limit, request.R, request.N = limit, R, N
    request.cost, request.partial, request.strict, request.force = cost, partial, strict, seen.FORCE
  end
end

if request and request.quotas and keys[2] and not (at and command == 'ADMIT') and not structs.whole
  and not request.rises then
  local rated = {}
  packed = string.char(request.strict and 13 or 9)
  for place = 1, #keys do
    local one = request.quotas[place]
    if one.R then
      rated[#rated + 1] = keys[place]
      packed = packed .. pack('<I8I8I8I8', one.limit, one.R, one.N, one.cost)
    end
  end
  if #rated == 0 then packed = nil
  else
    several = true
    if command == 'ADMIT' then admitted, keys = request.quotas, rated end
  end
end

-- The server decides what time it is, unless the caller says so (§3), as it has to where there is no clock.
local now = at
if not now then
  local clock = call('TIME')
  local seconds, micros = clock[1], clock[2]
  if not micros then return {err = 'ERR no clock: ' .. clock.err} end
  micros = micros + 0
  now = seconds * 1000 + (micros - micros % 1000) / 1000
  if now == 0 then return {err = 'ERR no clock: TIME says 0'} end
end

---------------------------------------------------------------------------------------------------------------------
-- SETTLE of rates and budgets, in the subintervals and periods that they were reserved in, where no hold has ended.
-- Without functions, as what comes after it; what does not end here is decided by what follows.
---------------------------------------------------------------------------------------------------------------------

if command == 'SETTLE' and not at and not structs.whole then
  local format, key, id, used = string.format, KEYS[1], request.ids[1], request.used
  local scores, stored = call('ZMSCORE', key, 'n', 'e' .. id, 't' .. id), call('ZCARD', key)
  local extra, ends, token = scores[1] and scores[1] + 9007199254740992 or -1, (scores[2] or 0) + 0, -(scores[3] or 0)
  local units = extra > 0 and (call('ZMSCORE', key, 'u' .. id)[1] or 0) / 17592186044416 or 1
  local member = ends > now and ends < 17592186044416 and ends % 1 == 0 and units >= 1 and units % 1 == 0
    and extra >= units - 1 and extra % 1 == 0 and token >= 1 and token % 1 == 0 and token <= MAX
    and type(stored) == 'number' and (stored == 6 or call('ZCOUNT', key, '0', format('%d', now)) == 0)
  if member then
    local score = format('%.17g', token * 1298074214633706907132624082305024)
    member = call('ZRANGEBYSCORE', key, score, '+inf', 'LIMIT', '0', '1')[1]
  end
  if member and string.sub(member, 1, 9) ~= 'v' .. pack('<d', token) then member = nil end
  local reply, writes, place, ranged, wholes = {1}, {}, 10, nil, 0
  for i = 2, member and #KEYS or 0 do
    local length, name, value, through = #member, KEYS[i], nil, nil
    local kind, size, from
    if place + 4 <= length then kind, size, from = unpack('<BI4', member, place) end
    if not size or from + size + 35 > length or string.sub(member, from, from + size - 1) ~= name or kind == 72 then
      member = nil
      break
    end
    local reserved, of, resolution, subintervals, rest, after = unpack('<ddddI4', member, from + size)
    local beyond, change = used[i] - reserved, 0
    place = after + rest
    value = call('GETRANGE', name, '0', kind == 82 and '91' or '28')
    if kind == 82 and #value >= 76 then
      local magic, R, N, last, total, slid, blocked, slots, previous, before = unpack('<I4ddddddddd', value)
      -- What is given back is not all of the newest subinterval, in which it was reserved; what is beyond counts there.
      if magic == 829192051 and R == resolution and N == subintervals and slots >= 0 and slots <= N and before >= 0
        and slid >= before and previous >= slid and total > previous and total <= MAX and last >= 0 and blocked >= 0
        and (#value == 76 + 16 * slots or #value == 92 and slots > 1) and of <= now and (now - now % R) / R <= last + N
        and (beyond == 0 or beyond < 0 and last == (of - of % R) / R and -beyond < total - previous
          or beyond > 0 and last >= (now - now % R) / R and total + beyond <= MAX) then
        through, change = total + beyond, beyond
        if beyond ~= 0 then
          writes[#writes + 1] = {name, pack('<d', through)}
          ranged = name
        end
      end
    elseif kind == 66 and #value == 28 then
      local magic, spent, began, over = unpack('<I4ddd', value)
      if magic == 828536691 and spent >= 1 and spent % 1 == 0 and began >= 0 and began % 1 == 0 and over > began
        and over > now and over <= MAX and over - began <= LONGEST and over % 1 == 0 and spent + beyond >= 1
        and spent + beyond <= MAX then
        through = spent + beyond
        if beyond > 0 or beyond < 0 and over == of then
          writes[#writes + 1] = {name, pack('<I4ddd', 828536691, through, began, over), true}
          change, wholes = beyond, wholes + 1
        end
      end
    end
    if not through then
      member = nil
      break
    end
    reply[i] = change
  end

  if member and place == #member + 1 then
    -- What may be refused is tried first, by writes that change nothing. Then no write fails because there is no
    -- memory.
    local done = call('ZREM', key, 'x')
    if type(done) == 'table' then return {err = done.err} end
    done = ranged and wholes > 0 and call('SETRANGE', ranged, '28', '')
    if type(done) == 'table' then return {err = done.err} end
    for turn = 1, 2 do
      for _, one in ipairs(writes) do
        if one[3] and turn == 1 then done = call('SET', one[1], one[2], 'KEEPTTL')
        elseif not one[3] and turn == 2 then done = call('SETRANGE', one[1], '28', one[2])
        end
        if type(done) == 'table' and done.err then return {err = done.err} end
      end
    end
    local is_last = stored == 6 or call('ZCOUNT', key, scores[2], '17592186044415') == 1 -- none other ends as late
    local newest = is_last and -(call('ZMSCORE', key, 'l')[1] or 0) or token
    local expiry = (newest - newest % 1000) / 1000 + 1
    if stored == 6 and expiry <= now and type(call('DEL', key)) == 'number' then return reply end
    call('ZREM', key, 'e' .. id, 't' .. id, 'u' .. id, member, stored == 6 and 'n' or 'x')
    if stored > 6 then
      done = call('ZCOUNT', key, '17592186044416', '(1298074214633706907132624082305024')
      if units > 1 and done ~= 0 then
        done = call('ZADD', key, format('%d', extra - units + 1 - 9007199254740992), 'n')
      end
      if type(done) ~= 'number' or done == 0 and units == 1 then call('ZREM', key, 'n') end
    end
    if is_last then
      local last = call('ZREVRANGEBYSCORE', key, scores[2], '0', 'WITHSCORES', 'LIMIT', '0', '1')
      if last[2] and last[2] + 0 > expiry then expiry = last[2] + 0 end
      if last.err then -- a right is missing: the hold has ended, and the expiry stays
      elseif expiry <= now then call('DEL', key)
      elseif expiry < ends then call('PEXPIREAT', key, format('%d', expiry)) end
    end
    return reply
  end
end

---------------------------------------------------------------------------------------------------------------------
-- ALLOW and PEEK of a key, and MALLOW of several, that are kept at the geometry asked for. Written without functions,
-- because every call would make each of them again, and they cost more than the decision; each name for a constant
-- costs, too. What does not end here is decided by what follows, which can do all of this, too.
---------------------------------------------------------------------------------------------------------------------

if admitted then                  -- every clause is checked before a key is
  for _, one in ipairs(admitted) do
    if one.ends and (one.ends <= now or one.ends - now > LONGEST) then return {err = PERIOD_END} end
  end
end

if packed then
  local flags, limit, R, N, cost = unpack('<BI8I8I8I8', packed)
  local looks, partial, strict
  if flags ~= 1 then
    if several and flags ~= 9 and flags ~= 13 or not several and flags > 7 then
      return {err = 'ERR packed call is out of range'}
    end
    looks, partial, strict = flags % 2 == 0, flags % 4 >= 2, flags % 8 >= 4
  elseif several then return {err = 'ERR packed call is out of range'}
  end
  local replies, writes, fits -- of several: what each key replies while nothing is counted, and its write
  local last = several and (structs.whole and 0 or #keys) or 1
  if several then replies, writes, fits = {}, {}, true end
  for number = 1, last do
    if number > 1 then limit, R, N, cost = unpack('<I8I8I8I8', packed, 32 * number - 30) end
    local window, key = R * N, keys[number]
    if limit > MAX or window < 1 or window > LONGEST or N > MOST_SUBINTERVALS or cost < 1 or cost > MAX
      or not key or not several and keys[2] then
      return {err = 'ERR packed call is out of range'}
    end
    local value = call('GETRANGE', key, '0', '91') -- the header and a slot
    local bytes = #value
    if bytes < 76 then
      if value ~= '' then return {err = value.err or WRONGTYPE} end
      value = string.rep('\0', 76)
    end
    local magic, own_R, own_N, newest, through, slid, blocked, slots, previous, before = unpack('<I4ddddddddd', value)
    if own_R == R and own_N == N or bytes == 0 then
      local length = 76 + 16 * slots
      if not (magic == 829192051 and newest >= 0 and newest <= MAX and before >= 0 and slid >= before and previous >= slid
          and through > previous and through <= MAX and blocked >= 0
          and (bytes == length or bytes == 92 and length > 92 and slots <= N)) then
        if bytes > 0 then return {err = WRONGTYPE} end -- somebody else has written it
        newest = -N - 2
      end

      -- §3: a decision is made at max(now, newest·R).
      local e = now % R
      local c = (now - e) / R

      -- The running totals before and through c - N, the subinterval that slides out. `first` is the first slot from
      -- c - N on; slot number `slots` is the newest subinterval.
      local first = 0
      if c < newest then c, e = newest, 0
      elseif c > newest then
        local oldest = c - N
        if oldest > newest then
          slid, before, first = through, through, slots + 1
        else
          if slots > 1 then
            value = call('GETRANGE', key, '0', '331') -- the header and 16 slots
            bytes = #value
            if bytes ~= length and (bytes ~= 332 or length < 332) then return {err = WRONGTYPE} end
          end
          -- Subintervals ascend by at least one from slot to slot: that bounds where c - N can be.
          local low, high = oldest - newest + slots, slots
          if low < 0 then low = 0 end
          if slots > 0 then
            local _, oldest_slot = unpack('<dd', value, 69)
            if oldest - oldest_slot < high then high = oldest - oldest_slot end
            if high < low then high = low end
          end
          while low < high do
            local middle = (low + high - (low + high) % 2) / 2
            local piece, place = value, 77 + 16 * middle
            if place + 7 > bytes then piece, place = call('GETRANGE', key, place - 1, place + 6), 1 end
            if #piece < place + 7 then return {err = WRONGTYPE} end
            if unpack('<d', piece, place) < oldest then low = middle + 1 else high = middle end
          end
          first = low
          local piece, place = value, 69 + 16 * first
          local size = first < slots and 24 or 8
          if place + size - 1 > bytes then piece, place = call('GETRANGE', key, place - 1, place + size - 2), 1 end
          if #piece < place + size - 1 then return {err = WRONGTYPE} end
          local subinterval, total = newest, through
          if first < slots then before, subinterval, total = unpack('<ddd', piece, place)
          else before = unpack('<d', piece, place) end
          slid = subinterval == oldest and total or before
        end
      end

      -- §2: estimate = full + trailing·(R - e) / R, rounded up; with STRICT full + trailing.
      local trailing = slid - before
      local weighted, exact = trailing, true
      if trailing > 0 and not strict then
        local product = trailing * (R - e)
        local rest = product % R
        weighted = (product - rest) / R
        if rest > 0 then weighted = weighted + 1 end
        exact = product <= MAX
      end
      local remaining = limit - through + slid - weighted
      local granted = cost
      if cost > remaining then
        if remaining < 0 then remaining = 0 end
        granted = partial and remaining or 0
      end

      if not exact then -- the product needs more than a double
      elseif granted > 0 and blocked <= now then
        local sum = through + granted
        if sum > MAX then -- totals begin again, or there are too many units
        elseif looks then
          local reset_after = (newest + N + 1) * R - now
          if reset_after < 0 then reset_after = 0 end
          return words and {granted, limit, remaining, 0, reset_after} or pack('<ddd', granted, remaining, reset_after)
        else
          local reset_after, done, whole = (c + N + 1) * R - now, nil, nil
          if c > newest then
            -- A new subinterval: the one that was the newest becomes a slot, and slots before c - N go.
            local tail = ''
            if first <= slots then
              tail = string.sub(value, 77 + 16 * first)
              if slots > 16 then
                tail = call('GETRANGE', key, 76 + 16 * first, -1)
                if #tail ~= 16 * (slots - first) then return {err = WRONGTYPE} end
              end
              tail = tail .. pack('<dd', newest, through)
            else
              sum, slid, previous, through, before = granted, 0, 0, 0, 0
            end
            whole = pack('<I4ddddddddd', 829192051, R, N, c, sum, slid, blocked, #tail / 16, through, before) .. tail
          end
          if several then
            local left = (newest + N + 1) * R - now
            replies[number + 1] = {granted, limit, remaining, 0, left > 0 and left or 0}
            writes[number] = {whole, pack('<d', sum), reset_after, c * R}
          else
            if whole then
              local unit, expiry = 'PXAT', now + reset_after
              if at then unit, expiry = 'PX', reset_after end
              done = call('SET', key, whole, unit, string.format('%.0f', expiry))
            else done = call('SETRANGE', key, '28', pack('<d', sum))
            end
            if done ~= length and type(done) == 'table' and done.err then return {err = done.err} end
            remaining = remaining - granted
            return words and {granted, limit, remaining, 0, reset_after} or pack('<ddd', granted, remaining, reset_after)
          end
        end
      elseif not block or blocked > now then
        -- Denied. §4: retry_after is exact; the window's part of it is the time until enough has slid out.
        local room = limit - (partial and 1 or cost)
        local reset_after = (newest + N + 1) * R - now
        local retry_after = 0
        if granted == 0 then
          if room < 0 then retry_after = -1
          else
            -- The first subinterval through which so much is counted that all younger ones fit into `room`. Mostly it is
            -- the newest or the oldest, so that these are looked at first.
            local earlier, last, total, needed = previous, newest, through, through - room
            if previous >= needed then
              local low, high, probe = first, slots, first
              while low < high do
                local piece, place = value, 69 + 16 * probe
                if place + 23 > bytes and bytes == 92 then
                  value = call('GETRANGE', key, '0', '331')
                  bytes, piece = #value, value
                end
                if place + 23 > bytes then piece, place = call('GETRANGE', key, place - 1, place + 22), 1 end
                if #piece < place + 23 then return {err = WRONGTYPE} end
                local one, other, third = unpack('<ddd', piece, place)
                if third < needed then low, earlier = probe + 1, third
                else high, earlier, last, total = probe, one, other, third end
                probe = (low + high - (low + high) % 2) / 2
              end
            end
            -- While it is trailing, its units fit as soon as (R - e)·units <= (room - younger)·R.
            retry_after = reset_after - (newest - last) * R
            if not strict then
              local held, product = total - earlier, (room - through + total) * R
              if held <= 0 then return {err = WRONGTYPE} end
              retry_after, exact = retry_after - (product - product % held) / held, product <= MAX
            end
            if retry_after < 0 then retry_after = 0 end
          end
        end
        if exact then
          if reset_after < 0 then reset_after = 0 end
          if blocked > now then -- §10
            remaining = 0
            if retry_after >= 0 and blocked - now > retry_after then retry_after = blocked - now end
            if blocked - now > reset_after then reset_after = blocked - now end
          end
          if several then replies[number + 1], fits = {0, limit, remaining, retry_after, reset_after}, false
          elseif words then return {0, limit, remaining, retry_after, reset_after}
          else return pack('<ddd', -remaining, retry_after, reset_after)
          end
        end
      end
    end
    if several and not replies[number + 1] then fits = nil break end
  end

  -- §15: the budgets and the hold of an ADMIT that is granted. There is one hold at most, which is new; and no hold of
  -- its key, and no period, has ended.
  if admitted then
    local format, ranged, wholes, rates, fault = string.format, nil, 0, 0, nil
    local all, sets, reserved, hold = {1}, {}, '', nil
    for i = 1, fits and #admitted or 0 do
      local asked, key = admitted[i], KEYS[i]
      local limit, cost = asked.limit, asked.cost
      if asked.R then
        rates = rates + 1
        local reply, write = replies[rates + 1], writes[rates]
        reply[3], reply[5] = reply[3] - cost, write[3]
        if write[1] then sets[#sets + 1] = {key, write[1], now + write[3]} else ranged, wholes = key, wholes + 1 end
        reserved = reserved .. pack('<BI4', 82, #key) .. key
          .. pack('<ddddI4', cost, write[4] > now and write[4] or now, asked.R, asked.N, 0)
        all[i + 1] = reply
      elseif asked.ends then
        local value = call('GETRANGE', key, '0', '28')
        local magic, used, began, over = 828536691, 0, now, asked.ends
        if #value == 28 then magic, used, began, over = unpack('<I4ddd', value)
        elseif value ~= '' then magic = nil end
        if not (magic == 828536691 and used >= 0 and used % 1 == 0 and began >= 0 and began % 1 == 0 and over > began
            and over > now and over <= MAX and over - began <= LONGEST and over % 1 == 0 and used + cost <= limit
            and (used > 0) == (value ~= '') and asked.ends > now and asked.ends - now <= LONGEST) then
          fits = nil
          break
        end
        sets[#sets + 1] = {key, pack('<I4ddd', 828536691, used + cost, began, over), value == '' and over}
        reserved = reserved .. pack('<BI4', 66, #key) .. key .. pack('<ddddI4', cost, over, 0, 0, 0)
        all[i + 1] = {cost, limit, limit - used - cost, 0, over - now}
      else
        local scores = call('ZMSCORE', key, 'l', 'n', 'e' .. asked.id)
        local stored = not scores[2] and call('ZCARD', key)
        local instant = format('%d', now)
        local live = call('ZCOUNT', key, '(' .. instant, '17592186044415')
        local over = scores[2] and call('ZCOUNT', key, '0', instant) or 0
        local token, extra = -(scores[1] or 0), scores[2] and scores[2] + 9007199254740992 or 0
        local number, ends = now * 1000, now + asked.ttl
        if token >= number then number = token + 1 end
        if hold or scores[3] ~= false or type(live) == 'table' or over ~= 0
          or not (stored == 0 or token >= 1 and token % 1 == 0 and (scores[2] or stored == 2 * live + 1))
          or extra < 0 or extra % 1 ~= 0 or cost > limit - live - extra or live >= 100000 or number > MAX
          or number >= 1000 * (ends - 1) then
          fits = nil
          break
        end
        hold = {key, asked, scores[1], number, ends, extra, scores[2]}
        all[i + 1] = {cost, limit, limit - live - extra - cost, 0, asked.ttl, number}
      end
    end

    if fits then
      local done = ranged and #sets > 0 and call('SETRANGE', ranged, '28', '')
      if type(done) == 'table' and done.err then return {err = done.err} end
      local key, asked, token, number, ends, extra, sum, expiry, outlived, member
      if hold then
        key, asked, token, number, ends, extra, sum = hold[1], hold[2], hold[3], hold[4], hold[5], hold[6], hold[7]
        expiry = format('%d', ends)
        outlived = call('ZCOUNT', key, expiry, '17592186044415') -- by holds that end no earlier
        local cost, text = asked.cost, format('%d', -number)
        local ends_of, token_of = 'e' .. asked.id, 't' .. asked.id
        if reserved == '' and cost == 1 and not sum then
          done = call('ZADD', key, expiry, ends_of, text, token_of, text, 'l')
        else -- there is more than ends and tokens
          local units, kept = '17592186044416', '-9007199254740992'
          if cost > 1 then units = format('%.17g', cost * 17592186044416) end
          if extra + cost > 1 then kept = format('%d', extra + cost - 1 - 9007199254740992) end
          if reserved ~= '' then
            member = 'v' .. pack('<d', number) .. reserved
            done = call('ZADD', key, expiry, ends_of, text, token_of, text, 'l', units, 'u' .. asked.id, kept, 'n',
              format('%.17g', number * 1298074214633706907132624082305024), member)
          elseif cost > 1 then
            done = call('ZADD', key, expiry, ends_of, text, token_of, text, 'l', units, 'u' .. asked.id, kept, 'n')
          else done = call('ZADD', key, expiry, ends_of, text, token_of, text, 'l')
          end
        end
        if type(done) == 'table' and done.err then return {err = done.err} end
        if outlived == 0 then done = call('PEXPIREAT', key, expiry)
        else
          done = call('PTTL', key)
          if type(done) == 'number' then done = done >= 0 and done < asked.ttl and call('PEXPIREAT', key, expiry) end
        end
        fault = type(done) == 'table' and done.err
      end
      for i = 1, fault and 0 or #sets do
        local one = sets[i]
        if one[3] then done = call('SET', one[1], one[2], 'PXAT', format('%.0f', one[3]))
        else done = call('SET', one[1], one[2], 'KEEPTTL')
        end
        fault = fault or done.err
      end
      for i = 1, wholes > 0 and not fault and last or 0 do
        if not writes[i][1] then
          done = call('SETRANGE', keys[i], '28', writes[i][2])
          fault = fault or type(done) == 'table' and done.err
        end
      end
      if not fault then return all end
      if hold then -- a right is missing: take it back
        call('ZREM', key, 'e' .. asked.id, 't' .. asked.id, 'u' .. asked.id, member or 'x', sum and 'x' or 'n',
          token and 'x' or 'l')
        if token then call('ZADD', key, token, 'l', sum or token, sum and 'n' or 'l') end
        local final = call('ZREVRANGEBYSCORE', key, '17592186044415', '0', 'WITHSCORES', 'LIMIT', '0', '1')
        if final[2] and outlived == 0 then call('PEXPIREAT', key, final[2]) end
      end
      return {err = fault}
    end
    fits = nil
  end

  -- §5: all or nothing. A write that may be refused is tried before the first: SET comes before SETRANGE.
  if several and last > 0 and fits ~= nil then
    replies[1] = fits and 1 or 0
    if not fits then return replies end
    local ranged, wholes = nil, 0
    for i = 1, last do
      if writes[i][1] then wholes = wholes + 1 else ranged = keys[i] end
    end
    local done = ranged and wholes > 0 and call('SETRANGE', ranged, '28', '')
    for turn = 1, 2 do
      for i = 1, last do
        local whole, through, lives = writes[i][1], writes[i][2], writes[i][3]
        if type(done) == 'table' and done.err then return {err = done.err} end
        if whole and turn == 1 then
          done = call('SET', keys[i], whole, at and 'PX' or 'PXAT', string.format('%.0f', at and lives or now + lives))
        elseif not whole and turn == 2 then done = call('SETRANGE', keys[i], '28', through)
        end
        local reply = replies[i + 1]
        if turn == 2 then reply[3], reply[5] = reply[3] - reply[1], lives end
      end
    end
    if type(done) == 'table' and done.err then return {err = done.err} end
    return replies
  end
  if not several then
    command = looks and 'PEEK' or 'ALLOW'
    request = {limit = limit, R = R, N = N, cost = cost, partial = partial, strict = strict}
  elseif not words then
    command, request = 'MALLOW', {quotas = {}, strict = strict}
    for i = 1, #keys do
      limit, R, N, cost = unpack('<I8I8I8I8', packed, 32 * i - 30)
      if limit > MAX or R * N < 1 or R * N > LONGEST or N > MOST_SUBINTERVALS or cost < 1 or cost > MAX then
        return {err = 'ERR packed call is out of range'}
      end
      request.quotas[i] = {limit = limit, R = R, N = N, cost = cost}
    end
  end
end

---------------------------------------------------------------------------------------------------------------------
-- Everything else
---------------------------------------------------------------------------------------------------------------------

local OVERFLOW = 'ERR count would overflow'

-- Ends the script with an error, which `answer` returns.
local function fail(message)
  error({err = message}, 0)
end

local undone -- the calls that take back what has been written, should a later write be refused

-- The reply of a function, or the error it fails with.
local function answer(decide, ...)
  local done, reply = pcall(decide, ...)
  local whole = structs.whole
  if done then return whole and whole(reply) or reply end
  for i = undone and #undone or 0, 1, -1 do undone[i]() end
  -- From Redis 7.0 on, pcall makes a string of such a table.
  local fault = type(reply) == 'table' and reply.err or reply
  -- Lua 5.4 refuses what is no integer, where 5.1 goes on: damage has led to it.
  return {err = whole and not string.find(fault, '^%u+ ') and WRONGTYPE or fault}
end

local function ask(...)
  local reply = call(...)
  if type(reply) == 'table' and reply.err then fail(reply.err) end
  return reply
end

-- Store a value that lives for `lives` ms, in a key that lived for `lived` ms more (nil: a new one, or another block). §3:
-- a key in which nothing matters goes; the expiry is set only when the end or a block has changed.
local pending -- SETTLE decides everything before it writes: its writes, {key, value, lives, lived, now, at}
local function put(key, value, lives, lived)
  if pending then
    pending[#pending + 1] = {key, value, lives, lived, now, at}
    return
  end
  if lives <= 0 then return ask('DEL', key) end
  if lives == lived then return ask('SET', key, value, 'KEEPTTL') end
  if at then return ask('SET', key, value, 'PX', string.format('%.0f', lives)) end
  return ask('SET', key, value, 'PXAT', string.format('%.0f', now + lives))
end

---------------------------------------------------------------------------------------------------------------------
-- Budgets (§14)
---------------------------------------------------------------------------------------------------------------------

local BUDGET_MAGIC = 828536691 -- 'swb1'

-- The budget of a key's value; nil for an empty one. Where there is a budget, at least one unit is used.
local function budget_of(value)
  if value == '' then return nil end
  if #value ~= 28 then fail(WRONGTYPE) end
  local magic, used, began, over = unpack('<I4ddd', value)
  if not (magic == BUDGET_MAGIC and used >= 1 and used <= MAX and used % 1 == 0 and began >= 0 and began % 1 == 0
      and over > began and over <= MAX and over - began <= LONGEST and over % 1 == 0) then
    fail(WRONGTYPE)
  end
  return {used = used, since = began, ends = over}
end

-- The first 29 bytes of a key tell a budget from everything else.
local function open_budget(key)
  return budget_of(ask('GETRANGE', key, '0', '28'))
end

local function check_end(instant)
  if instant <= now or instant - now > LONGEST then fail(PERIOD_END) end
end

-- What is in force of it at `now`: the units used, and its end; 0 and nil without one.
local function in_force(budget)
  if budget and now < budget.ends then return budget.used, budget.ends end
  return 0
end

-- What a request {limit, cost, partial} comes to: units granted.
local function afford(budget, request)
  local room = math.max(0, request.limit - in_force(budget))
  return request.cost <= room and request.cost or request.partial and room or 0
end

-- The reply as it reads at `now`, so many units having been granted.
local function spent(budget, request, granted)
  local used, over = in_force(budget)
  local left, retry = over and over - now or 0, 0
  if granted == 0 then retry = request.limit < (request.partial and 1 or request.cost) and -1 or left end
  return {granted, request.limit, math.max(0, request.limit - used), retry, left}
end

-- Count units; the budget with them.
local function spend(key, budget, request, amount)
  local used, over = in_force(budget)
  if amount > MAX - used then fail(OVERFLOW) end
  local after = {used = used + amount, since = over and budget.since or now, ends = over or request.ends}
  local value = pack('<I4ddd', BUDGET_MAGIC, after.used, after.since, after.ends)
  put(key, value, after.ends - now, budget and budget.ends - now)
  return after
end

if command == 'BUDGET' then -- before functions are made that it does not need
  return answer(function()
    local key = KEYS[1]
    check_end(request.ends)
    local budget = open_budget(key)
    local granted = afford(budget, request)
    local amount = request.force and request.cost or granted
    if amount > 0 then budget = spend(key, budget, request, amount) end
    return spent(budget, request, granted)
  end)
end

---------------------------------------------------------------------------------------------------------------------
-- Holds (§13). Their functions are made only for the commands that need them.
---------------------------------------------------------------------------------------------------------------------

local LATEST_END = 9322559254740 -- of a hold: the latest instant of a token, and 3650 days
local holds_of, peek_hold, decide_hold, granted_hold, keep, hold_again, release, sweep, show_holders
local live_units, reservations_of, describe
if request.holding then
  local UNIT, NO_EXTRA = 17592186044416, -9007199254740992 -- 2^44, -2^53
  -- An instant that is given may be followed by an earlier one, so all that has ended goes.
  local MOST_HOLDS, MOST_SWEPT, CHUNK = 100000, at and '-1' or '200', 1000
  local spread = table.unpack or _G.unpack
  undone = {}

  local looks -- at how many ends of holds this call may look to find when there is room, beside one a key

  local function decimal(number) return string.format('%d', number) end
  local function large(number) return string.format('%.17g', number) end
  local function score_of_token(token) return large(token * 2 ^ 110) end

  -- A command with many words more, in parts that the stack has room for; their replies in one list.
  local function in_parts(ask, name, key, words)
    if #words <= CHUNK then return #words > 0 and ask(name, key, spread(words)) or {} end
    local replies = {}
    for from = 1, #words, CHUNK do
      local part = ask(name, key, spread(words, from, math.min(from + CHUNK - 1, #words)))
      for i = 1, type(part) == 'table' and #part or 0 do replies[from + i - 1] = part[i] end
    end
    return replies
  end

  local function members(prefixes, names)
    local found = {}
    if #prefixes == 1 then
      for i = 1, #names do found[i] = prefixes .. names[i] end
      return found
    end
    for i = 1, #names do
      for kind = 1, #prefixes do found[#found + 1] = string.sub(prefixes, kind, kind) .. names[i] end
    end
    return found
  end

  local function without_prefix(found)
    for i, member in ipairs(found) do found[i] = string.sub(member, 2) end
    return found
  end

  -- A number that a score stands for; WRONGTYPE where somebody else has written it.
  local function sound(number, least, most)
    if not (number >= least and number <= most and number % 1 == 0) then fail(WRONGTYPE) end
    return number
  end

  -- The units of a hold, of the score of its 'u', which is missing where that is one.
  local function units_of(score) return score and sound(score / UNIT, 1, MAX) or 1 end

  -- The sum of units - 1 of holds, of members that are a letter and an id; each one's is put at the end of a list, if
  -- there is one. Written for thousands: the server and Lua spend most on writing and reading numbers.
  local function extra_of(key, found, list)
    local extras, sum = {[false] = 0}, 0
    for i = 1, #found do found[i] = 'u' .. string.sub(found[i], 2) end
    found = in_parts(ask, 'ZMSCORE', key, found)
    for i = 1, #found do
      local score = found[i]
      local extra = extras[score]
      if not extra then
        extra = units_of(score) - 1
        extras[score] = extra
      end
      sum = sum + extra
      if list then list[#list + 1] = extra end
    end
    return sum
  end

  -- The members of ends that have passed: all, but at most so many where sweeping may go on with the next change.
  local function ended(held)
    local most = held.is_plain and MOST_SWEPT or '-1'
    return ask('ZRANGEBYSCORE', held.key, '0', decimal(math.min(now, LATEST_END)), 'LIMIT', '0', most)
  end

  local function last_end(key, is_plain)
    local found
    if is_plain then found = ask('ZRANGE', key, '-1', '-1', 'WITHSCORES')
    else found = ask('ZREVRANGEBYSCORE', key, decimal(LATEST_END), '0', 'WITHSCORES', 'LIMIT', '0', '1')
    end
    return sound(math.max(0, tonumber(found[2] or 0)), 0, LATEST_END)
  end

  -- The first instant at which nothing of holds matters any more.
  local function end_of(token, last)
    return math.max(last, (token - token % 1000) / 1000 + 1)
  end

  -- How many units are live: as many as holds, and the sum of units - 1 of them, or of all but those that have ended,
  -- whichever are fewer. Where both are many, they are summed only for somebody who has to know.
  live_units = function(held, may_wait)
    if held.units then return held.units end
    local key, instant = held.key, decimal(math.min(now, LATEST_END))
    local over = ask('ZCOUNT', key, '0', instant)
    if may_wait and math.min(over, held.count) > CHUNK then return nil end
    if over <= held.count then
      held.units = held.count + sound(held.extra - extra_of(key, ended(held)), 0, MAX)
    else
      held.extras = {}
      local live = ask('ZRANGEBYSCORE', key, '(' .. instant, decimal(LATEST_END))
      held.units = held.count + extra_of(key, live, held.extras)
    end
    return held.units
  end

  -- What a key holds at `now`: the largest token, how many are live, their units; and of these ids, by their places,
  -- the live holds. is_plain: every hold has one unit, and reserves nothing.
  holds_of = function(key, names)
    local wanted = members('etu', names)
    wanted[#wanted + 1], wanted[#wanted + 2] = 'l', 'n'
    local found = in_parts(ask, 'ZMSCORE', key, wanted)
    local held = {key = key, token = 0, count = 0, units = nil, extra = 0, live = {}, is_plain = true}
    local token, extra = found[#wanted - 1], found[#wanted]
    local top = ask('ZRANGE', key, '-1', '-1', 'WITHSCORES')
    if not top[1] then
      held.units = 0
      return held
    end
    held.token = sound(-(token or 0), 1, MAX)
    local score = tonumber(top[2])
    held.is_plain, held.count = score < UNIT, ask('ZCOUNT', key, '(' .. decimal(now), decimal(LATEST_END))
    if held.is_plain then held.last = sound(math.max(0, score), 0, LATEST_END)
    else
      held.last = last_end(key, false)
      held.extra = extra and sound(extra - NO_EXTRA, 0, MAX)
        or extra_of(key, ask('ZRANGEBYSCORE', key, decimal(UNIT), '(' .. score_of_token(1)))
    end
    if held.extra == 0 then held.units = held.count end
    held.ends = end_of(held.token, held.last)
    for i, id in ipairs(names) do
      local ends, own, units = tonumber(found[3 * i - 2] or 0), found[3 * i - 1], found[3 * i]
      if ends > now then
        if not own then fail(WRONGTYPE) end
        held.live[i] = {id = id, ends = sound(ends, 0, LATEST_END), token = sound(-own, 1, MAX),
          units = units_of(units), is_plain = not units}
      end
    end
    return held
  end

  -- When no more than so many live units will be left; before that where more holds have to end than may be looked at,
  -- or more have to be summed. Live ends stand side by side: by their places no member is counted off. The server spends
  -- most on writing scores, so only the one that is wanted is read.
  local function freed_at(held, room)
    local key, units = held.key, live_units(held, true)
    local first = ask('ZCOUNT', key, '-inf', decimal(math.min(now, LATEST_END)))
    local needed, seen = (units or held.count) - room, 0
    if units == held.count then seen = needed
    else
      looks = looks or CHUNK - (request.quotas and #request.quotas or 1)
      local most, extras = math.min(held.count, looks + 1), held.extras or {}
      looks = looks + 1 - most
      while needed > 0 and seen < most do
        if seen == #extras then
          local from, to = decimal(first + seen), decimal(first + math.min(seen + 100, most) - 1)
          extra_of(key, ask('ZRANGE', key, from, to), extras)
          if seen == #extras then fail(WRONGTYPE) end
        end
        seen = seen + 1
        needed = needed - 1 - extras[seen]
      end
    end
    local place = decimal(first + seen - 1)
    return sound(tonumber(ask('ZRANGE', key, place, place, 'WITHSCORES')[2] or 0), now, LATEST_END)
  end

  -- What is left of a limit.
  local function remains(held, limit)
    return limit > held.count and math.max(0, limit - live_units(held)) or 0
  end

  -- How a request {limit, ttl, id, cost} reads to somebody who only looks.
  peek_hold = function(held, request)
    local remaining, retry = remains(held, request.limit), 0
    local granted = (held.live[1] or request.cost <= remaining) and request.cost or 0
    if granted == 0 then
      local room = request.limit - request.cost
      retry = room < 0 and -1 or math.max(0, freed_at(held, room) - now)
    end
    return {granted, request.limit, remaining, retry, 0, 0}
  end

  -- The hold that a request comes to, new or live; nil where it does not fit.
  decide_hold = function(held, request)
    local live = held.live[1]
    if live then
      if live.units ~= request.cost then fail(string.format('ERR id holds %.0f units', live.units)) end
      return live
    end
    if request.cost > remains(held, request.limit) then return nil end
    if held.count >= MOST_HOLDS then fail('ERR too many holds') end
    local token = math.max(held.token + 1, now * 1000)
    if token > MAX then fail('ERR the fencing token of this key is used up') end
    return {id = request.id, ends = now + request.ttl, token = token, units = request.cost, is_new = true}
  end

  granted_hold = function(held, request, hold)
    local remaining = math.max(0, remains(held, request.limit) - (hold.is_new and hold.units or 0))
    return {hold.units, request.limit, remaining, 0, request.ttl, hold.token}
  end

  -- §13: the key expires when nothing of it matters any more, `ends`; never before what this change has put there ends.
  local function expire(held, ends, least)
    local function set(left, ask)
      if at then ask('PEXPIRE', held.key, decimal(left)) else ask('PEXPIREAT', held.key, decimal(now + left)) end
    end
    if ends ~= held.ends then
      local left = ends - now
      if at and held.ends then -- ahead of the clock: what was there before may end later than it says
        local clock, lives = ask('TIME'), ask('PTTL', held.key)
        local ahead = now - (clock[1] * 1000 + math.floor(clock[2] / 1000))
        if ahead > 0 then left = math.max(left, math.min(lives, left + ahead)) end
      end
      set(left, ask)
      undone[#undone + 1] = function() if held.ends then set(held.ends - now, call) end end
    elseif least > now then
      local lives = ask('PTTL', held.key)
      if lives >= 0 and lives < least - now then set(least - now, ask) end
    end
  end

  -- Write the sum of all units - 1, or that there is none.
  local function sum_up(held)
    local key = held.key
    local counted = call('ZCOUNT', key, decimal(UNIT), '(' .. score_of_token(1))
    local done = counted ~= 0 and call('ZADD', key, decimal(held.extra + NO_EXTRA), 'n')
    if type(done) ~= 'number' then call('ZREM', key, 'n') end
  end

  -- Remove holds by their ids.
  local function remove(held, names)
    local gone = members(held.is_plain and 'et' or 'etu', names)
    local extra = 0
    if not held.is_plain then
      extra = extra_of(held.key, members('u', names))
      for _, token in ipairs(in_parts(ask, 'ZMSCORE', held.key, members('t', names))) do
        local score = score_of_token(-(token or 0))
        gone[#gone + 1] = ask('ZRANGEBYSCORE', held.key, score, score)[1]
      end
    end
    in_parts(ask, 'ZREM', held.key, gone)
    if not held.is_plain then
      held.extra = held.extra - extra
      sum_up(held)
    end
  end

  -- Every change begins with letting go of what has ended.
  sweep = function(held)
    local names = without_prefix(ended(held))
    if #names == 0 then return end
    ask('ZADD', held.key, 'XX', '0', 'x') -- changes nothing, but is refused where a hold would be
    remove(held, names)
  end

  -- Keep a hold that is granted: a new one; or a live one, until another end. `reserved`: what it reserves, where that
  -- is another than before. The effect is that of one ZADD; should another write be refused, it is taken back.
  keep = function(held, request, hold, reserved)
    local key, ends = held.key, now + request.ttl
    if not hold.is_new and hold.ends == ends and not reserved then return end
    sweep(held)
    local put, gone, back = {decimal(ends), 'e' .. hold.id}, {}, {}
    local extra, is_plain = held.extra, hold.is_plain
    if hold.is_new then
      put[3], put[4], put[5], put[6] = decimal(-hold.token), 't' .. hold.id, decimal(-hold.token), 'l'
      gone = {'e' .. hold.id, 't' .. hold.id}
      if held.token > 0 then back = {decimal(-held.token), 'l'} else gone[3] = 'l' end
      extra, is_plain = extra + hold.units - 1, hold.units == 1
    else back = {decimal(hold.ends), 'e' .. hold.id}
    end
    if reserved or hold.is_new and not is_plain then
      put[#put + 1], put[#put + 2] = large(hold.units * UNIT), 'u' .. hold.id
      if is_plain or hold.is_new then gone[#gone + 1] = 'u' .. hold.id end
    end
    if reserved or not (held.is_plain and is_plain) then
      put[#put + 1], put[#put + 2] = decimal(extra + NO_EXTRA), 'n'
      if held.is_plain then gone[#gone + 1] = 'n'
      else back[#back + 1], back[#back + 2] = decimal(held.extra + NO_EXTRA), 'n' end
    end
    if reserved then
      put[#put + 1], put[#put + 2] = score_of_token(hold.token), reserved
      gone[#gone + 1] = reserved
    end
    in_parts(ask, 'ZADD', key, put)
    undone[#undone + 1] = function()
      if #gone > 0 then call('ZREM', key, spread(gone)) end
      if #back > 0 then call('ZADD', key, spread(back)) end
    end
    held.extra, held.is_plain = extra, held.is_plain and is_plain and not reserved
    local last = hold.is_new and math.max(held.last or 0, ends) or last_end(key, held.is_plain)
    expire(held, end_of(math.max(held.token, hold.token), last), ends)
    if reserved and hold.reserved then call('ZREM', key, hold.reserved) end -- nothing is taken back any more
  end

  -- Whether holds were renewed. Those that end then already are left as they are.
  hold_again = function(held, names, ends)
    local put, back, answers = {}, {}, {}
    for i, id in ipairs(names) do
      local hold = held.live[i]
      answers[i] = hold and 1 or 0
      if hold and hold.ends ~= ends then
        put[#put + 1], put[#put + 2] = decimal(ends), 'e' .. id
        back[#back + 1], back[#back + 2] = decimal(hold.ends), 'e' .. id
      end
    end
    if #put > 0 then
      ask('ZREM', held.key, 'x') -- changes nothing: a script that has written may go on where memory is used up
      sweep(held)
      in_parts(ask, 'ZADD', held.key, put)
      undone[1] = function() in_parts(call, 'ZADD', held.key, back) end
      expire(held, end_of(held.token, last_end(held.key, held.is_plain)), ends)
    end
    return answers
  end

  -- End live holds, and let go of what has ended; the units that were freed. Where nothing is left that matters, the
  -- key goes.
  release = function(held, holds)
    local freed, names = 0, {}
    for _, hold in ipairs(holds) do
      freed, names[#names + 1] = freed + hold.units, hold.id
    end
    if #names == held.count and end_of(held.token, 0) <= now then
      ask('DEL', held.key)
      return freed
    end
    for _, id in ipairs(without_prefix(ended(held))) do names[#names + 1] = id end
    remove(held, names)
    -- The holds have ended: a user who may not change the expiry leaves it.
    pcall(expire, held, end_of(held.token, last_end(held.key, held.is_plain)), now)
    return freed
  end

  -- §13: the live holds, oldest first; where there are more than CHUNK, of those that end first.
  show_holders = function(held)
    local first = ask('ZCOUNT', held.key, '-inf', decimal(math.min(now, LATEST_END)))
    local last = first + (held.count > CHUNK and math.min(held.count, request.shown) or held.count) - 1
    local ids = last >= first and without_prefix(ask('ZRANGE', held.key, decimal(first), decimal(last))) or {}
    local tokens, id_of, shown, rows = {}, {}, {}, {}
    local scores = in_parts(ask, 'ZMSCORE', held.key, members('t', ids))
    for i = 1, #ids do
      local token = -(scores[i] or 0)
      tokens[i], id_of[token] = token, ids[i]
    end
    table.sort(tokens)
    for i = 1, math.min(#tokens, request.shown) do shown[i] = id_of[tokens[i]] end
    local found = in_parts(ask, 'ZMSCORE', held.key, members('eu', shown))
    for i, id in ipairs(shown) do
      local token, ends = sound(tokens[i], 1, MAX), sound(tonumber(found[2 * i - 1] or 0), now, LATEST_END)
      local since = (token - token % 1000) / 1000
      rows[i] = {id, units_of(found[2 * i]), math.max(0, now - since), ends - now, token}
    end
    return rows
  end

  -- Reservations as a member: {'R', or with a warm-up 'W', key, units, instant, resolution, subintervals},
  -- {'B', key, units, end} or {'H', key, units, token, 0, 0, id}.
  describe = function(token, list)
    local parts = {'v' .. pack('<d', token)}
    for i, one in ipairs(list) do
      local name, id = one[2], one[7] or ''
      parts[i + 1] = pack('<BI4', string.byte(one[1]), #name) .. name
        .. pack('<ddddI4', one[3], one[4], one[5] or 0, one[6] or 0, #id) .. id
    end
    return table.concat(parts)
  end

  -- What a live hold reserves; its member is remembered with it.
  reservations_of = function(held, hold)
    local list = {}
    if hold.is_plain then return list end
    local score = score_of_token(hold.token)
    local member = ask('ZRANGEBYSCORE', held.key, score, score)[1]
    if not member then return list end
    hold.reserved = member
    local function read()
      local place = 10
      while place <= #member do
        local kind, size, from = unpack('<BI4', member, place)
        local units, third, fourth, fifth, length, after = unpack('<ddddI4', member, from + size)
        list[#list + 1] = {string.char(kind), string.sub(member, from, from + size - 1), units, third, fourth, fifth,
          string.sub(member, after, after + length - 1)}
        place = after + length
      end
    end
    if not pcall(read) then fail(WRONGTYPE) end
    return list
  end
end

if command == 'HOLD' or command == 'RELEASE' or command == 'RENEW' or command == 'HOLDERS' then
  return answer(function()
    local ids = request.ids
    local held = holds_of(KEYS[1], ids or {request.id})
    if command == 'RENEW' then return hold_again(held, ids, now + request.ttl)
    elseif command == 'HOLD' then
      local hold = decide_hold(held, request)
      if not hold then return peek_hold(held, request) end
      local reply = granted_hold(held, request, hold)
      keep(held, request, hold)
      return reply
    elseif command == 'RELEASE' then
      local live, seen = {}, {}
      for i, id in ipairs(ids) do
        if held.live[i] and not seen[id] then live[#live + 1], seen[id] = held.live[i], true end
      end
      return #live > 0 and release(held, live) or 0
    end
    return show_holders(held)
  end)
end

---------------------------------------------------------------------------------------------------------------------
-- Windows
---------------------------------------------------------------------------------------------------------------------

-- In a function of its own: a packed call, which makes none of these, would pay for each local name of the chunk.
local function run()
  local function subinterval_at(instant, resolution)
    return (instant - instant % resolution) / resolution
  end

  -- The quotient of a·b / c rounded down, which is less than 2^53, and whether there is a rest. Where the product is 2^53
  -- or more, long division over the bits of b, which is less than 2^49: no intermediate value reaches 2^53.
  local function scale(a, b, c)
    local product = a * b
    if product <= MAX then
      local rest = product % c
      return (product - rest) / c, rest > 0
    end
    local part = a % c
    local whole, quotient, rest, bit = (a - part) / c * b, 0, 0, 281474976710656
    while bit >= 1 do
      quotient = quotient * 2
      if rest >= c - rest then quotient, rest = quotient + 1, rest - (c - rest) else rest = rest + rest end
      if b >= bit then
        b = b - bit
        if rest >= c - part then quotient, rest = quotient + 1, rest - (c - part) else rest = rest + part end
      end
      bit = bit / 2
    end
    return whole + quotient, rest > 0
  end

  -- What a key holds: the header's fields, and `value`, its first bytes. nil for a missing key. Where any value is
  -- taken, the second result is a budget.
  local function open(key, takes_any)
    local value = ask('GETRANGE', key, '0', '339')
    if value == '' then return nil end
    local magic, since, most = string.sub(value, 1, 4), nil, 340
    if takes_any and magic == 'swb1' then return nil, budget_of(value) end
    if magic == 'swl2' and #value >= 84 then
      since, most = -unpack('<d', value, 5), 332
      if not (since >= 1 and since <= MAX and since % 1 == 0) then fail(WRONGTYPE) end
      value = string.sub(value, 9) -- the first four bytes, which are read no more, and the others as without `since`
    elseif #value < 76 or magic ~= 'swl1' then fail(WRONGTYPE) end
    local entry = {key = key, value = value, since = since}
    local _
    _, entry.R, entry.N, entry.newest, entry.through, entry.slid, entry.blocked, entry.slots, entry.previous,
      entry.before = unpack('<I4ddddddddd', value)
    for _, field in ipairs({'R', 'N', 'newest', 'through', 'slid', 'blocked', 'slots', 'previous', 'before'}) do
      local number = entry[field]
      if not (number >= 0 and number <= MAX + LONGEST and number % 1 == 0) then fail(WRONGTYPE) end
    end
    local sound = #value == math.min(most, 76 + 16 * entry.slots) and entry.slots <= entry.N
    if entry.R == 0 then
      sound = sound and not since and entry.N == 0 and entry.newest == 0 and entry.through == 0 and entry.blocked > 0
    else
      sound = sound and entry.N >= 1 and entry.N <= MOST_SUBINTERVALS and entry.R * entry.N <= LONGEST
        and entry.newest <= subinterval_at(MAX, entry.R) and entry.through <= MAX
        and entry.before <= entry.slid and entry.slid <= entry.previous and entry.previous < entry.through
    end
    if not sound then fail(WRONGTYPE) end
    return entry
  end

  -- More bytes of an entry, as they stand where it has no `since`.
  local function more(entry, from, to)
    local beyond = entry.since and 8 or 0
    return ask('GETRANGE', entry.key, from + beyond, to < 0 and to or to + beyond)
  end

  -- The slots of an entry, all of them, as bytes.
  local function slots_of(entry)
    if entry.slots > 15 and #entry.value ~= 76 + 16 * entry.slots then
      entry.value = more(entry, 0, -1)
      if #entry.value ~= 76 + 16 * entry.slots then fail(WRONGTYPE) end
    end
    return string.sub(entry.value, 77)
  end

  -- Of a slot: the running total before it, its subinterval, the running total through it. Slot number `slots` is the
  -- newest subinterval.
  local function slot(entry, number)
    if number % 1 ~= 0 then fail(WRONGTYPE) end -- damaged slots have led here
    local piece, place, size = entry.value, 69 + 16 * number, number < entry.slots and 24 or 8
    if #piece < place + size - 1 then
      piece, place = more(entry, place - 1, place + size - 2), 1
      if #piece < size then fail(WRONGTYPE) end
    end
    if number < entry.slots then return unpack('<ddd', piece, place) end
    return (unpack('<d', piece, place)), entry.newest, entry.through
  end

  -- The running total before a subinterval.
  local function total_before(entry, subinterval)
    if subinterval > entry.newest then return entry.through end
    local low, high = math.max(0, subinterval - entry.newest + entry.slots), entry.slots
    if low < high then
      local _, oldest = slot(entry, 0)
      high = math.max(low, math.min(high, subinterval - oldest))
    end
    while low < high do
      local middle = math.floor((low + high) / 2)
      local _, found = slot(entry, middle)
      if found < subinterval then low = middle + 1 else high = middle end
    end
    return (slot(entry, low))
  end

  -- §3: ms from `now` until nothing that an entry counts matters any more, (newest + N + 1)·R - now. Negative when that
  -- has passed. `now` is subtracted first, so that the product stays below 2^53.
  local function time_to_end(entry)
    if entry.R == 0 then return -now end
    return (entry.newest + entry.N + 1 - subinterval_at(now, entry.R)) * entry.R - now % entry.R
  end

  -- §17: ms from `now` until nothing has counted for a window, of an entry with `since`.
  local function time_in_use(entry)
    return time_to_end(entry) + entry.R * entry.N
  end

  -- Ms from `now` until nothing of an entry matters, its block included.
  local function time_to_live(entry)
    return math.max(entry.since and time_in_use(entry) or time_to_end(entry), entry.blocked - now)
  end

  -- How long an entry is blocked, in ms; nil when it is not.
  local function blocked_for(entry)
    return entry and entry.blocked > now and entry.blocked - now or nil
  end

  -- §6: an entry as a request with its own geometry sees it. Nothing is moved: the units of stored subinterval i count
  -- where min((i + 1)·R - 1, the instant) lies. `entry` is nil where nothing counts: from the stored end on nothing
  -- does.
  local function view(entry, resolution, subintervals)
    if entry and (entry.R == 0 or time_to_end(entry) <= 0) then entry = nil end
    local own = entry and entry.R == resolution and entry.N == subintervals
    return {entry = entry, own = own, R = resolution, N = subintervals}
  end

  -- The subinterval, of the request's, in which the newest units are seen at an instant.
  local function newest_seen(seen, instant)
    local entry = seen.entry
    if seen.own then return entry.newest end
    local start = entry.newest * entry.R
    return subinterval_at(math.min(start + entry.R - 1, math.max(instant, start)), seen.R)
  end

  -- §3: time never runs backwards for a key.
  local function decision_instant(seen, instant)
    if not seen.entry then return instant end
    return math.max(instant, newest_seen(seen, instant) * seen.R)
  end

  -- §2: the estimate, rounded up, and `full + trailing`, at an instant.
  local function load_at(seen, instant, whole)
    local entry, c = seen.entry, subinterval_at(instant, seen.R)
    if not entry then return 0, 0 end
    local oldest, slid, before = c - seen.N, nil, nil
    if seen.own then
      slid, before = total_before(entry, oldest + 1), total_before(entry, oldest)
    else
      if instant >= (entry.newest + entry.N + 1) * entry.R then return 0, 0 end
      local held_from = subinterval_at(math.max(instant, entry.newest * entry.R), entry.R) - entry.N
      local function seen_before(subinterval)
        return total_before(entry, math.max(subinterval_at(math.max(subinterval, 0) * seen.R, entry.R), held_from))
      end
      slid = seen_before(oldest + 1)
      before = oldest >= 0 and seen_before(oldest) or slid
    end
    local full, trailing = entry.through - slid, slid - before
    local weighted = trailing
    if not whole and trailing > 0 then
      local quotient, rest = scale(trailing, seen.R - instant % seen.R, seen.R)
      weighted = quotient + (rest and 1 or 0)
    end
    return full + weighted, full + trailing
  end

  -- §17: what is in force at `now` + `after` of the limit of a request with WARMUP, where so many units are held. The
  -- limit rises by equal parts in equal times. Where nothing counts it is at least the cost: a denial begins no use.
  local function part_in_force(entry, seen, wanted, after, held)
    local limit, duration, cold, used_for = wanted.limit, wanted.warmup, wanted.cold or 3, 0
    if entry and entry.since and time_in_use(entry) > after then
      used_for = math.max(0, decision_instant(seen, now + after) - entry.since)
    elseif held > 0 then return limit
    end
    local part = limit
    if used_for < duration then
      part = math.min(limit, math.max(1, (scale(limit, duration + (cold - 1) * used_for, cold * duration))))
    end
    return held == 0 and not wanted.partial and wanted.cost <= limit and math.max(part, wanted.cost) or part
  end

  -- A request with what is in force of its limit, and with what was wanted; itself where the limit does not rise.
  local function risen(entry, seen, wanted)
    if not wanted.warmup then return wanted end
    local _, held = load_at(seen, decision_instant(seen, now), true)
    return {limit = part_in_force(entry, seen, wanted, 0, held), cost = wanted.cost, partial = wanted.partial,
      strict = wanted.strict, wanted = wanted}
  end

  -- What a request {limit, cost, partial, strict} comes to: units granted, units that remain, units held.
  local function weigh(seen, request)
    local estimate, held = load_at(seen, decision_instant(seen, now), request.strict)
    local remaining = math.max(0, request.limit - estimate)
    local granted = request.cost <= remaining and request.cost or request.partial and remaining or 0
    return granted, remaining, held
  end

  -- §4: ms until a request that is denied now would be granted; -1 when it never is.
  local function retry_after(seen, request)
    local room = request.limit - (request.partial and 1 or request.cost)
    if room < 0 then return -1 end
    local entry = seen.entry
    if not entry then return 0 end
    if not seen.own then
      -- Units only slide out: what fits once fits from then on, at the latest at the stored end.
      local low, high = 0, time_to_end(entry)
      while low < high do
        local middle = low + math.floor((high - low) / 2) -- their sum may pass 2^53
        local estimate = load_at(seen, decision_instant(seen, now + middle), request.strict)
        if estimate <= room then high = middle else low = middle + 1 end
      end
      return low
    end
    -- The first subinterval through which so much is counted that all younger ones fit into `room`.
    local low, high = 0, entry.slots
    while low < high do
      local middle = math.floor((low + high) / 2)
      local _, _, total = slot(entry, middle)
      if total < entry.through - room then low = middle + 1 else high = middle end
    end
    local before, last, through = slot(entry, low)
    local early = 0
    if not request.strict then
      if through <= before then fail(WRONGTYPE) end
      early = scale(room - (entry.through - through), seen.R, through - before)
    end
    return math.max(0, (last + seen.N + 1 - subinterval_at(now, seen.R)) * seen.R - now % seen.R - early)
  end

  -- §4: ms until the estimate is 0 and stays 0; at another geometry (§6) never beyond the stored end.
  local function reset_after(seen)
    local entry = seen.entry
    if not entry then return 0 end
    local ends = time_to_end(entry)
    if not seen.own then
      local latest = subinterval_at(entry.newest * entry.R + entry.R - 1, seen.R)
      ends = math.min(ends, (latest + seen.N + 1 - subinterval_at(now, seen.R)) * seen.R - now % seen.R)
    end
    return math.max(0, ends)
  end

  -- §17: ms until a request with WARMUP would be granted; -1 when it never is. The estimate only sinks, and the limit
  -- only rises: what fits once fits from then on, no earlier than with the whole limit, and no later than with what is
  -- in force now.
  local function rising_retry_after(entry, seen, wanted)
    local needed, strict = wanted.partial and 1 or wanted.cost, wanted.strict
    if needed > wanted.limit then return -1 end
    local function room(after) -- in the part in force, and what is counted
      local estimate, held = load_at(seen, decision_instant(seen, now + after), strict)
      return part_in_force(entry, seen, wanted, after, held) - needed, estimate
    end
    local left, estimate = room(0)
    if estimate <= left then return 0 end
    local low, high = 0, reset_after(seen)
    local function with_limit(limit) return retry_after(seen, {limit = limit, cost = needed, strict = strict}) end
    if estimate > wanted.limit - needed then low = with_limit(wanted.limit) end
    if left >= 0 then high = math.min(high, with_limit(left + needed)) end
    while low < high do
      local middle = low + math.floor((high - low) / 2)
      left, estimate = room(middle)
      if estimate <= left then high = middle else low = middle + 1 end
    end
    return low
  end

  -- §10: a reply as it reads behind a block of so many ms.
  local function behind(reply, ms)
    if not ms then return reply end
    local retry = reply[4] < 0 and -1 or math.max(reply[4], ms)
    return {0, reply[2], 0, retry, math.max(reply[5], ms)}
  end

  -- Ms until a request, as `risen` has it, is granted.
  local function time_to_grant(entry, seen, request)
    if request.wanted then return rising_retry_after(entry, seen, request.wanted) end
    return retry_after(seen, request)
  end

  -- The reply while nothing is counted.
  local function denial(entry, seen, request, granted, remaining)
    local retry = granted > 0 and 0 or time_to_grant(entry, seen, request)
    return {granted, request.limit, remaining, retry, reset_after(seen)}
  end

  local function peek(entry, wanted)
    local seen = view(entry, wanted.R, wanted.N)
    local request = risen(entry, seen, wanted)
    local granted, remaining, held = weigh(seen, request)
    local blocked = blocked_for(entry)
    if not blocked and granted > MAX - held then fail(OVERFLOW) end
    return behind(denial(entry, seen, request, granted, remaining), blocked)
  end

  -- An entry with these counts, oldest first; the last one is the newest.
  local function build(key, resolution, subintervals, subs, counts, blocked, since)
    local entry = {key = key, R = 0, N = 0, newest = 0, through = 0, slid = 0, blocked = blocked, slots = 0,
      previous = 0, before = 0, since = #subs > 0 and since or nil}
    local parts = {}
    if #subs > 0 then
      entry.R, entry.N, entry.newest, entry.slots = resolution, subintervals, subs[#subs], #subs - 1
      for i = 1, #subs do
        entry.previous, entry.through = entry.through, entry.through + counts[i]
        if i < #subs then parts[i] = pack('<dd', subs[i], entry.through) end
      end
      if subs[1] == entry.newest - subintervals then entry.slid = counts[1] end
    end
    entry.value = string.rep('\0', 76) .. table.concat(parts) -- a header of which only the last total, 0, is read
    return entry
  end

  -- The counts of an entry, oldest first: subintervals, and units.
  local function counts_of(entry)
    local subs, counts = {}, {}
    if entry.R == 0 then return subs, counts end
    slots_of(entry)
    for number = 0, entry.slots do
      local before, subinterval, through = slot(entry, number)
      if not (through > before and subinterval > (subs[number] or -1)) then fail(WRONGTYPE) end
      subs[number + 1], counts[number + 1] = subinterval, through - before
    end
    return subs, counts
  end

  -- §6: the counts of an entry at another geometry: those that matter in both, where min((i + 1)·R - 1, instant) lies.
  local function regrouped(entry, resolution, subintervals)
    local instant = math.max(now, entry.newest * entry.R)
    local oldest = math.max(0, subinterval_at(instant, resolution) - subintervals)
    oldest = math.max(subinterval_at(instant, entry.R) - entry.N, subinterval_at(oldest * resolution, entry.R))
    local subs, counts = {}, {}
    local old_subs, old_counts = counts_of(entry)
    for i = 1, #old_subs do
      if old_subs[i] >= oldest then
        local moved = subinterval_at(math.min((old_subs[i] + 1) * entry.R - 1, instant), resolution)
        if subs[#subs] == moved then counts[#counts] = counts[#counts] + old_counts[i]
        else subs[#subs + 1], counts[#counts + 1] = moved, old_counts[i] end
      end
    end
    return subs, counts
  end

  -- The entry with units counted at an instant, and whether more than the newest running total has changed. What no
  -- longer matters is dropped. §17: a key that comes into use remembers since when, where the limit rises (`warmup`).
  local function counted(entry, seen, key, instant, amount, warmup)
    local subinterval = subinterval_at(instant, seen.R)
    if seen.own and subinterval == entry.newest and entry.through + amount <= MAX then
      entry.through = entry.through + amount
      return entry, false
    end
    local subs, counts = {}, {}
    if seen.own then subs, counts = counts_of(entry)
    elseif seen.entry then subs, counts = regrouped(entry, seen.R, seen.N) end
    local place = #subs
    while place > 0 and subs[place] > subinterval do place = place - 1 end
    if place > 0 and subs[place] == subinterval then counts[place] = counts[place] + amount
    else
      table.insert(subs, place + 1, subinterval)
      table.insert(counts, place + 1, amount)
    end
    local first, oldest = 1, subs[#subs] - seen.N
    while subs[first] < oldest do first = first + 1 end
    if first > 1 then
      local kept_subs, kept_counts = {}, {}
      for i = first, #subs do kept_subs[#kept_subs + 1], kept_counts[#kept_counts + 1] = subs[i], counts[i] end
      subs, counts = kept_subs, kept_counts
    end
    local since = entry and entry.since
    if reset_after(seen) == 0 and not (since and time_in_use(entry) > 0) then
      since = warmup and math.max(1, instant)
    end
    return build(key, seen.R, seen.N, subs, counts, entry and entry.blocked or 0, since), true
  end

  -- Store an entry that lived for `lived` ms more (nil: as in `put`); `whole`: more has changed than the newest running
  -- total.
  local function store(entry, lived, whole)
    local lives = time_to_live(entry)
    local since = entry.since
    if not whole and not pending and lives == lived and lives > 0 then
      return ask('SETRANGE', entry.key, since and '36' or '28', pack('<d', entry.through))
    end
    local head = pack('<ddddddddd', entry.R, entry.N, entry.newest, entry.through, entry.slid, entry.blocked,
      entry.slots, entry.previous, entry.before)
    head = (since and 'swl2' .. pack('<d', -since) or 'swl1') .. head
    return put(entry.key, head .. slots_of(entry), lives, lived)
  end

  local function allow(key, request)
    local entry, warmup = open(key), request.warmup
    local seen = view(entry, request.R, request.N)
    request = risen(entry, seen, request)
    local granted, remaining, held = weigh(seen, request)
    local blocked, lived = blocked_for(entry), entry and time_to_live(entry)
    if granted == 0 or blocked then
      local reply = behind(denial(entry, seen, request, granted, remaining), blocked)
      if not block or blocked then return reply end
      entry = entry or build(key, 0, 0, {}, {}, 0)
      entry.blocked = now + block
      store(entry, nil, true)
      return behind(reply, block)
    end
    if granted > MAX - held then fail(OVERFLOW) end
    local whole
    entry, whole = counted(entry, seen, key, decision_instant(seen, now), granted, warmup)
    store(entry, lived, whole)
    return {granted, request.limit, remaining - granted, 0, math.max(0, time_to_end(entry))}
  end

  local function record(key, wanted)
    local entry = open(key)
    local seen = view(entry, wanted.R, wanted.N)
    local request = risen(entry, seen, wanted)
    local granted, _, held = weigh(seen, request)
    local fits = granted > 0
    -- What the caller dates counts where it says; what it does not, at the decision instant.
    local age = wanted.age
    local dated, instant = age and math.max(0, now - age) or at, decision_instant(seen, now)
    if dated then
      instant = dated
      local subinterval = subinterval_at(dated, seen.R)
      local oldest = seen.entry and newest_seen(seen, now) - seen.N or 0
      local left = (subinterval + seen.N + 1 - subinterval_at(now, seen.R)) * seen.R - now % seen.R
      if subinterval < oldest or left <= 0 then return peek(entry, wanted) end
      local _
      _, held = load_at(seen, decision_instant(seen, dated), true)
    end
    if request.cost > MAX - held then fail(OVERFLOW) end
    local blocked, lived = blocked_for(entry), entry and time_to_live(entry)
    local begun = not blocked and not fits and block or nil
    local whole
    entry, whole = counted(entry, seen, key, instant, request.cost, wanted.warmup)
    seen = view(entry, seen.R, seen.N)
    local remaining = math.max(0, request.limit - load_at(seen, decision_instant(seen, now), request.strict))
    local given = fits and not blocked and request.cost or 0
    local retry = (given > 0 or remaining >= request.cost) and 0 or time_to_grant(entry, seen, request)
    if begun then
      entry.blocked, lived, whole = now + begun, nil, true
    end
    store(entry, lived, whole)
    return behind({given, request.limit, remaining, retry, reset_after(seen)}, blocked or begun)
  end

  -- Of a budget, nothing goes back that is older than its period.
  local function take_back(key, budget)
    local used, over = in_force(budget)
    local age = request.age
    if not over or age and math.max(0, now - age) < budget.since then return 0 end
    local given = math.min(request.units, used)
    local value = pack('<I4ddd', BUDGET_MAGIC, used - given, budget.since, over)
    put(key, value, given < used and over - now or 0, over - now)
    return given
  end

  local function refund(key)
    local entry, budget = open(key, true)
    if request.since then request.age = math.max(0, now - request.since) end
    local age, units = request.age, request.units
    if budget then return take_back(key, budget) end
    if not entry or entry.R == 0 or time_to_end(entry) <= 0 then return 0 end
    local from, oldest = entry.newest - entry.N, nil
    if age then
      from = subinterval_at(math.max(0, now - age), entry.R)
      oldest = subinterval_at(math.max(now, entry.newest * entry.R), entry.R) - entry.N
      if from < oldest then return 0 end
      from = math.max(from, entry.newest - entry.N)
    end
    local given, lived = math.min(units, entry.through - total_before(entry, from)), time_to_live(entry)
    if given == 0 then return 0 end
    local before_newest = slot(entry, entry.slots)
    if given < entry.through - before_newest and (not age or from > entry.newest - 1) then
      entry.through = entry.through - given
      store(entry, lived, false)
      return given
    end
    local subs, counts = counts_of(entry)
    local first, last, step = #subs, 1, -1
    if age then first, last, step = 1, #subs, 1 end
    local left = given
    for i = first, last, step do
      if not age or subs[i] >= from then
        local taken = math.min(left, counts[i])
        counts[i], left = counts[i] - taken, left - taken
      end
    end
    local kept_subs, kept_counts = {}, {}
    for i = 1, #subs do
      if counts[i] > 0 then kept_subs[#kept_subs + 1], kept_counts[#kept_counts + 1] = subs[i], counts[i] end
    end
    store(build(key, entry.R, entry.N, kept_subs, kept_counts, entry.blocked, entry.since), lived, true)
    return given
  end

  local function begin_block(key)
    local entry = open(key)
    local held = blocked_for(entry)
    if held and (request.nx or request.gt and held >= request.duration) then return entry.blocked end
    entry = entry or build(key, 0, 0, {}, {}, 0)
    entry.blocked = now + request.duration
    store(entry, nil, true)
    return entry.blocked
  end

  local function lift_block(key)
    local entry = open(key)
    if not blocked_for(entry) then return 0 end
    entry.blocked = 0
    store(entry, nil, true)
    return 1
  end

  local function info(key)
    local value = call('GETRANGE', key, '0', '3')
    if type(value) == 'table' and string.sub(value.err or '', 1, 9) == 'WRONGTYPE' then
      local held = holds_of(key, {})
      return {'holds', held.count, 'units', live_units(held), 'end', held.count > 0 and held.last or 0, 'token', held.token,
        'memory', 122 * ask('ZCARD', key)} -- about
    end
    local entry, budget = open(key, true)
    if budget then return {'used', budget.used, 'since', budget.since, 'until', budget.ends, 'memory', 28} end
    if not entry then fail('ERR no such key') end
    local subs, counts = counts_of(entry)
    local shown, total = {}, 0
    for i = 1, #subs do
      shown[i], total = {subs[i] * entry.R, counts[i]}, total + counts[i]
    end
    return {'window', entry.R * entry.N, 'resolution', entry.R, 'subintervals', entry.N,
      'newest', entry.newest * entry.R, 'total', total, 'memory', (entry.since and 84 or 76) + 16 * entry.slots,
      'blocked', blocked_for(entry) and entry.blocked or 0, 'since', entry.since or 0, 'counts', shown}
  end

  local decide_all, settle
  local quotas, used = request.quotas, request.used
  if quotas then
    -- Whether a live hold reserves for a key what this clause asks for.
    local function is_reserved(reservation, key, asked)
      local kind = asked.ttl and 'H' or asked.ends and 'B' or 'R'
      local reserved = reservation and reservation[1]
      return (reserved == kind or reserved == 'W' and kind == 'R') and reservation[2] == key
        and reservation[3] == asked.cost and (kind ~= 'H' or reservation[7] == asked.id)
    end

    -- §5, §15: all or nothing.
    decide_all = function()
      local held, grants, replies, fits, first = {}, {}, {}, true, nil
      for _, asked in ipairs(quotas) do
        if asked.ends then check_end(asked.ends) end
        asked.strict = request.strict
      end
      for i, asked in ipairs(quotas) do
        if asked.ttl then held[i], first = holds_of(KEYS[i], {asked.id}), first or i
        else held[i] = (asked.ends and open_budget or open)(KEYS[i]) or false
        end
      end

      -- The first hold reserves the others. Asked again while it is live, nothing is counted again.
      local live = first and held[first].live[1]
      local known = live and reservations_of(held[first], live) or {}
      local is_repeated = #known > 0
      local function place_among_others(i) return i < first and i or i - 1 end
      if is_repeated then
        local are_same = #known == #quotas - 1
        for i, asked in ipairs(quotas) do
          are_same = are_same and (i == first or is_reserved(known[place_among_others(i)], KEYS[i], asked))
        end
        if not are_same then fail('ERR id holds other reservations') end
      end

      for i, asked in ipairs(quotas) do
        local value, granted = held[i] or nil, nil
        if asked.ttl then grants[i] = decide_hold(value, asked)
        elseif is_repeated then granted = asked.cost
        elseif asked.ends then granted = afford(value, asked)
        else
          local entry, seen = value, view(value, asked.R, asked.N)
          local remaining, counted_units
          local in_force = risen(entry, seen, asked)
          granted, remaining, counted_units = weigh(seen, in_force)
          if blocked_for(entry) then granted = 0 end
          if granted > MAX - counted_units then fail(OVERFLOW) end
          local lived = entry and time_to_live(entry)
          grants[i] = {seen = seen, lived = lived, limit = in_force.limit, remaining = remaining}
        end
        if asked.ttl then fits = fits and grants[i] ~= nil else fits = fits and granted > 0 end
      end

      local function look(i)
        local asked, value = quotas[i], held[i] or nil
        if asked.ttl then return peek_hold(value, asked) end
        return asked.ends and spent(value, asked, afford(value, asked)) or peek(value, asked)
      end
      replies[1] = fits and 1 or 0
      if not fits then
        for i = 1, #quotas do replies[i + 1] = look(i) end
        return replies
      end

      local reserved = {}
      for i, asked in ipairs(quotas) do
        local grant, of = grants[i], first and known[place_among_others(i)]
        if asked.ttl then
          replies[i + 1] = granted_hold(held[i], asked, grant)
          of = {'H', KEYS[i], asked.cost, grant.token, 0, 0, asked.id}
        elseif is_repeated then
          replies[i + 1] = look(i)
          replies[i + 1][1], replies[i + 1][4] = asked.cost, 0
        elseif asked.ends then
          local _, over = in_force(held[i] or nil)
          of = {'B', KEYS[i], asked.cost, over or asked.ends}
        else
          local instant = decision_instant(grant.seen, now)
          of = {asked.warmup and 'W' or 'R', KEYS[i], asked.cost, instant, asked.R, asked.N}
        end
        if first and i ~= first then reserved[#reserved + 1] = of end
      end

      -- Holds come first: what is refused later takes them back.
      local reserves = first and #reserved > 0 and describe(grants[first].token, reserved)
      if first then
        for i, asked in ipairs(quotas) do
          if asked.ttl and i ~= first then keep(held[i], asked, grants[i]) end
        end
        keep(held[first], quotas[first], grants[first], reserves ~= grants[first].reserved and reserves or nil)
      end
      -- All other keys are written by one command, SETRANGE or SET: a user who may not run it counts nothing anywhere.
      local any_whole = false
      for i, asked in ipairs(quotas) do
        local grant, whole = grants[i], true
        if asked.ttl or is_repeated then whole = false
        elseif grant then
          local instant = decision_instant(grant.seen, now)
          grant.entry, whole = counted(held[i] or nil, grant.seen, KEYS[i], instant, asked.cost, asked.warmup)
          local left = math.max(0, time_to_end(grant.entry))
          replies[i + 1] = {asked.cost, grant.limit, grant.remaining - asked.cost, 0, left}
        end
        any_whole = any_whole or whole
      end
      for i, asked in ipairs(quotas) do
        local grant = grants[i]
        if asked.ttl or is_repeated then -- written, or counted before
        elseif grant then store(grant.entry, grant.lived, any_whole)
        else replies[i + 1] = spent(spend(KEYS[i], held[i] or nil, asked, asked.cost), asked, asked.cost)
        end
      end
      return replies
    end

    end

  if used then
    -- §15: end a hold, and count what was really used of what it reserves: at most once.
    settle = function()
      local held = holds_of(KEYS[1], request.ids)
      local hold = held.live[1]
      if not hold then return {0} end
      local reserved, others, reply = reservations_of(held, hold), {}, {1}
      local are_same = #reserved == #KEYS - 1
      for i, one in ipairs(reserved) do are_same = are_same and one[2] == KEYS[i + 1] end
      if not are_same then fail('ERR keys are not those of the reservation') end
      for i, one in ipairs(reserved) do
        local kind, key = one[1], KEYS[i + 1]
        others[i] = kind == 'H' and holds_of(key, {one[7]}) or (kind == 'B' and open_budget or open)(key) or false
      end

      pending = {}
      local own_now, own_at = now, at
      for i, one in ipairs(reserved) do
        local kind, key, of, value, change = one[1], KEYS[i + 1], one[4], others[i] or nil, 0
        local beyond = used[i + 1] - one[3]
        if kind == 'H' then
          if used[i + 1] > 0 then fail(string.format("ERR syntax error near '%.0f'", used[i + 1])) end
          local live = value.live[1]
          others[i] = live and live.token == of and {value, live}
          change = others[i] and -live.units or 0
        elseif (kind == 'R' or kind == 'W') and beyond > 0 then
          local seen, lived = view(value, one[5], one[6]), value and time_to_live(value)
          local _, _, sum = weigh(seen, {limit = 0, cost = beyond})
          if beyond > MAX - sum then fail(OVERFLOW) end
          store(counted(value, seen, key, decision_instant(seen, now), beyond, kind == 'W'), lived, true)
          change = beyond
        elseif kind ~= 'B' then
          -- A clock that stepped back does not make the units older than they are.
          if of > now then now, at = of, of end
          request.units, request.age = -beyond, now - of
          change = beyond < 0 and -refund(key) or 0
          now, at = own_now, own_at
        else
          local _, over = in_force(value)
          if beyond > 0 and (over or of > now and of - now <= LONGEST) then
            spend(key, value, {ends = of}, beyond)
            change = beyond
          elseif beyond < 0 and over == of then
            request.units, request.age = -beyond, nil
            change = -take_back(key, value)
          end
        end
        reply[i + 1] = change
      end

      -- What may be refused is tried first, by writes that change nothing. Then no write fails because there is no
      -- memory.
      local writes = pending
      pending = nil
      ask('ZREM', KEYS[1], 'x')
      for _, write in ipairs(writes) do
        if write[3] > 0 then ask('SET', write[1], '', write[4] and 'NX' or 'XX') end
      end
      for _, deletes in ipairs({true, false}) do
        for _, write in ipairs(writes) do
          if (write[3] <= 0) == deletes then
            now, at = write[5], write[6]
            put(write[1], write[2], write[3], write[4])
          end
        end
      end
      now, at = own_now, own_at
      for i, one in ipairs(reserved) do
        if one[1] == 'H' and others[i] then release(others[i][1], {others[i][2]}) end
      end
      release(held, {hold})
      return reply
    end
  end

  local key = KEYS[1]
  if command == 'ALLOW' then return allow(key, request)
  elseif command == 'PEEK' then return peek(open(key), request)
  elseif command == 'RECORD' then return record(key, request)
  elseif command == 'REFUND' then return refund(key)
  elseif command == 'BLOCK' then return begin_block(key)
  elseif command == 'UNBLOCK' then return lift_block(key)
  elseif command == 'INFO' then return info(key)
  elseif command == 'SETTLE' then return settle()
  end
  return decide_all()
end

local reply = answer(run)
if words or several or reply.err then return reply end
if reply[1] > 0 then return pack('<ddd', reply[1], reply[3], reply[5]) end
return pack('<ddd', -reply[3], reply[4], reply[5])
