-- Health of a PodDecoration, by its conditions. Only what they say of the present spec counts.
hs = { status = "Progressing", message = "waiting for poddecoration-controller to look at the present spec" }
if obj.status == nil or obj.status.observedGeneration ~= obj.metadata.generation then
  return hs
end

local conditions = {}
for _, condition in ipairs(obj.status.conditions or {}) do
  if condition.observedGeneration == obj.metadata.generation then
    conditions[condition.type] = condition
  end
end

local function says(kind, status)
  local condition = conditions[kind]
  if condition ~= nil and condition.status == status then
    hs.message = condition.message or condition.reason
    return condition
  end
end

if says("Stalled", "True") then
  hs.status = "Degraded"
  return hs
end
local halted = says("Progressing", "False")
if halted ~= nil then
  hs.status = "Degraded"
  if halted.reason == "Paused" then
    hs.status = "Suspended"
  end
  return hs
end
if says("Ready", "True") then
  hs.status = "Healthy"
else
  says("Ready", "False")
end
return hs
