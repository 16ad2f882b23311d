-- Health of an OperationJob, by its conditions. Only what they say of the present spec counts, until the job has ended.
hs = { status = "Progressing", message = "waiting for operationjob-controller to look at the present spec" }
if obj.status == nil then
  return hs
end
local ended = obj.status.progress == "Succeeded" or obj.status.progress == "Failed"
if not ended and obj.status.observedGeneration ~= obj.metadata.generation then
  return hs
end

local conditions = {}
for _, condition in ipairs(obj.status.conditions or {}) do
  if ended or condition.observedGeneration == obj.metadata.generation then
    conditions[condition.type] = condition
  end
end

local function says(kind, status)
  local condition = conditions[kind]
  if condition ~= nil and condition.status == status then
    hs.message = condition.message or condition.reason
    return true
  end
end

if says("Stalled", "True") then
  hs.status = "Degraded"
elseif says("Ready", "True") then
  hs.status = "Healthy"
else
  says("Ready", "False")
end
return hs
