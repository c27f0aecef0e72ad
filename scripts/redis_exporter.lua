-- Statistics of swlimit for redis_exporter: redis_exporter --script redis_exporter.lua
-- Returns names and values in turn, as that option wants them: redis_script_values{key="swlimit_granted"} …
local values = {}
for name, value in string.gmatch(redis.call("INFO", "swlimit"), "(swlimit_[%w_]+):(%d+)\r\n") do
    values[#values + 1] = name
    values[#values + 1] = value
end
return values
