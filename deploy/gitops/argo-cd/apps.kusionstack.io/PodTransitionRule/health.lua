-- Health of a PodTransitionRule: whether it is in force. Pods that it holds back are what it is for.
hs = { status = "Progressing", message = "waiting for podtransitionrule-controller to look at the present spec" }
if obj.status == nil or obj.status.observedGeneration ~= obj.metadata.generation then
  return hs
end
for _, condition in ipairs(obj.status.conditions or {}) do
  if condition.type == "Ready" and condition.observedGeneration == obj.metadata.generation then
    hs.message = condition.message or condition.reason
    if condition.status == "True" then
      hs.status = "Healthy"
    else
      hs.status = "Degraded"
    end
    return hs
  end
end
return hs
